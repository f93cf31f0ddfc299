"""What every room may use: errors, files, the console, Markdown; the version, which all rooms may read."""

__version__ = "0.2.0"
