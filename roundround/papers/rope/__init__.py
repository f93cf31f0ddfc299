"""Statements of Round and Round We Go! (Barbero et al. 2024, arXiv:2410.06205)."""
