"""A model to look at, from a run or from Hugging Face: loaded, patched, exported; where a training run starts."""
