"""The figures and tables of both papers, made again and compared with what was published."""
