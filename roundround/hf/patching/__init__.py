"""This project's attention and frequencies inside a loaded Hugging Face model."""
