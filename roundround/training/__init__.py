"""Training on Lightning: the module, optimizers, schedules, the callback and the live display."""
