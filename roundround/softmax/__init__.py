"""Attention normalisers: one file each, by the interface of `base.AttentionSoftmax`."""
