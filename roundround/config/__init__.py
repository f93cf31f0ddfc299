"""The options in conf/, the typed config of each verb, and the objects that are built from checked nodes."""
