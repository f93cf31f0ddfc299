"""What the papers leave open, asked numerically; what is required here is what was found, so that a change is seen."""
