"""A model from or to Hugging Face: loaded, patched, and its configuration read as nodes of a config."""
