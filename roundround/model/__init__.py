"""The Llama-compatible decoder."""
