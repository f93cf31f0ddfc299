"""What lies in run directories, read together: which runs there are, and what they say of each other."""
