"""What every room may use: errors, files, the console, Markdown; the version, which all rooms may read.

Tested by tests/records/test_manifest.py and tests/test_imports.py.
"""

__version__ = "0.2.0"
