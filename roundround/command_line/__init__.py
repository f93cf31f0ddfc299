"""From what a person types to a task: flags and overrides, Hydra, error messages, completion, `roundround list`."""
