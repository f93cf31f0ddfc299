"""From yaml to objects: the options, the typed config of each verb, and nodes checked against their constructors."""
