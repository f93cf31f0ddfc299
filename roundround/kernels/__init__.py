"""What encodings, normalisers and models share: shapes, keys, biases, fused calls, tiles, and blocks of rows."""
