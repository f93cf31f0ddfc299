"""Metric loggers, which implement the hooks of `base.Logger`."""
