"""A trained decoder as a folder that `from_pretrained` loads."""
