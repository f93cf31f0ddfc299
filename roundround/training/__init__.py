"""Training with Lightning: the module, optimizers, schedules, the callback and the live display."""
