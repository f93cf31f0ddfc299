"""What every room may use: errors, files, the console, Markdown."""
