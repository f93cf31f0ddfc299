"""Every figure and table of the two papers: how it is made again here, and how it compares."""
