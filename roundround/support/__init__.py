"""What every package of roundround may import: errors, files, the console, Markdown, and the version.

Tested by tests/records/test_manifest.py and tests/test_imports.py.
"""

__version__ = "0.2.0"
