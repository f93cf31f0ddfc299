"""What attention does inside a model, measured while the model runs."""
