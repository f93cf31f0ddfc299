"""What attention does inside a model, measured in a stream while it runs."""
