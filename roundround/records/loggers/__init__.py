"""Metric loggers: one file each, by the hooks of `base.Logger`."""
