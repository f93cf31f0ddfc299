"""The run directory: manifest, checkpoints, provenance, loggers."""
