"""How processes are started, meet and miss each other; devices; signals."""
