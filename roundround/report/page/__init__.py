"""The page of a run: a single HTML file that needs no network, made from the run's files. Does not import torch."""
