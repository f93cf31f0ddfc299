"""Hugging Face models: loaded, observed, patched and exported; never implemented a second time."""
