"""Training on Lightning: the module, schedules, checkpoints and the live display."""
