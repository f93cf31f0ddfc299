"""One page for a run: a single HTML file that needs no network, read off what the run left. No torch here."""
