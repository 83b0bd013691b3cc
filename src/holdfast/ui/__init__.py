"""What a person sees of a run: a live view in a terminal, log lines elsewhere."""
