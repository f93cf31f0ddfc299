"""What every room may use: errors, files, the console, memory, Markdown."""
