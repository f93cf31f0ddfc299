"""What a command leaves behind and how it is taken up again: directory, manifest, checkpoints, a run rebuilt."""
