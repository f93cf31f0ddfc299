"""Classes that have moved: what runs recorded under an old name, by the name that it has now."""

MOVED = {
    "roundround.run.NoLogger": "roundround.runs.loggers.none.NoLogger",
    "roundround.run.WandB": "roundround.runs.loggers.wandb.WandB",
}
