"""Works on past runs: finds them by words and filters, compares their numbers, and repeats a run."""
