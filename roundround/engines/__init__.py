"""Test vectors for attention: small checkpoints, what engines should answer, and which mistake explains an answer."""
