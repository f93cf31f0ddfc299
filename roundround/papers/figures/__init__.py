"""The figures and tables of both papers, made again: a table `FIGURES` in each module."""
