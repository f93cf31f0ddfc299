"""One function a verb, read top to bottom."""
