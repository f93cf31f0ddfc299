"""How training runs start, how models are rebuilt from run directories, and how models are exported."""
