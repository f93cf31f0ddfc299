"""The command line: flags and overrides, Hydra, error messages, completion, `roundround list`."""
