"""Corpora, tokenizers, token files and batches. A training batch is a pure function of the seed and the step."""
