"""Attention normalisers: one file each, by the interface of `base.AttentionSoftmax`.

Tested by tests/softmax/test_softmax_contract.py, every one, and by tests/softmax/test_normalisers.py with its formula.
"""
