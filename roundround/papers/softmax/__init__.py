"""Statements of softmax is not enough (Velickovic et al. 2024, arXiv:2410.01104)."""
