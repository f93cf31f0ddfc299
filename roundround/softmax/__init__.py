"""Attention normalisers: one file each, with the interface of `base.AttentionSoftmax`.

Tested by tests/softmax/test_softmax_contract.py; tests/softmax/test_normalisers.py tests the formulas.
"""
