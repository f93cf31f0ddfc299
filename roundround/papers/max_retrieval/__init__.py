"""Max retrieval: one attention head that names the class of the item with the largest priority."""
