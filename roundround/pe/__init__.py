"""Positional encodings: one file each, with the hooks of `base.PositionalEncoding`.

Tested by tests/pe/test_pe_contract.py. tests/pe/test_NAME.py tests what is special to one encoding, and
tests/pe/test_pe_against_hugging_face.py tests encodings that another library also computes.
"""
