"""Training runs: where they start, and how their models are rebuilt from the run directory and exported."""
