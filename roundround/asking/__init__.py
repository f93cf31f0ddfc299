"""A model answers: it reads texts, generates, scores sentences and tasks, and shows which rotation it applies."""
