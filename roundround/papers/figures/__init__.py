"""The figures and tables of both papers, made again. Each module lists its own in a table, `FIGURES`."""
