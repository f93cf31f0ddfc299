"""Corpora, tokenisers and token files: from text to batches that are a pure function of seed and step."""
