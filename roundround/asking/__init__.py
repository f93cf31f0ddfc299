"""Uses trained models: they read texts, generate texts, score sentences, answer tasks, and show their rotations."""
