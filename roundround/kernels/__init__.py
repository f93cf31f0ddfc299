"""What encodings, normalisers and models share: shapes, keys and biases; fused calls, tiles, blocks of rows."""
