"""How the processes of a run are started, meet, and notice that one is gone; devices; signals."""
