"""Positional encodings: one file each, by the hooks of `base.PositionalEncoding`.

Tested by tests/pe/test_pe_contract.py, every one; what the contract cannot know by tests/pe/test_NAME.py, and what
another library computes too by tests/pe/test_pe_against_hugging_face.py.
"""
