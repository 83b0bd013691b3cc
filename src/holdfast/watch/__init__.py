"""What happens to pipelines, kept as events next to their state, and what a pipeline is, for whatever watches it."""
