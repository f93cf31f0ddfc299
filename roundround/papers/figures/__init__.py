"""The figures and tables of both papers, made again. Each module lists its figures and tables in `FIGURES`."""
