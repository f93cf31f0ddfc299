"""A trained run: where training starts, the model rebuilt from its directory, its export."""
