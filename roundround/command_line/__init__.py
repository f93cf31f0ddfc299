"""From what a person types to a verb: flags and overrides, Hydra, error messages, completion, `roundround list`."""
