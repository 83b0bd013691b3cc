"""Very many short epochs: whether anything grows with their number."""
