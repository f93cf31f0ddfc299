"""Run directories read together: which runs there are, how they compare, how one is repeated."""
