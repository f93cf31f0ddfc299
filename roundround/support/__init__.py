"""Modules that any package of roundround can import, such as errors, files, the console, Markdown; and the version.

Tested by tests/records/test_manifest.py and tests/test_imports.py.
"""

__version__ = "0.2.0"
