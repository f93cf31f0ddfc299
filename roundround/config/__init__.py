"""From yaml to objects: the options, the typed config of each verb, a node checked against the constructor it names."""
