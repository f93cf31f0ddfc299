"""The start of training runs, the models that are rebuilt from their run directories, and the export of models."""
