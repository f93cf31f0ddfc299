"""Attention normalisers: one file each, with the interface of `base.AttentionSoftmax`.

Tested by tests/softmax/test_softmax_contract.py, and for their formulas by tests/softmax/test_normalisers.py.
"""
