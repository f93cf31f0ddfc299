"""Positional encodings: one file each, with the hooks of `base.PositionalEncoding`.

Tested by tests/pe/test_pe_contract.py; what is special to one encoding by tests/pe/test_NAME.py, and encodings that
another library also computes by tests/pe/test_pe_against_hugging_face.py.
"""
