"""Statements of softmax is not enough (Velickovic et al. 2024, arXiv:2410.01104), and what it leaves open.

What is open is asked numerically; what is required there is what was found, so that a change is seen.
"""
