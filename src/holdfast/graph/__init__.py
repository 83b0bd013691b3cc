"""What the user declares: pipelines, streams, operators, windows and aggregates."""
