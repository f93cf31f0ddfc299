"""Hugging Face models: how they are loaded and patched, and how their configuration becomes nodes of a config."""
