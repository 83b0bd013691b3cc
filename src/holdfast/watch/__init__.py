"""What happens to pipelines, kept as events beside their state, and what a pipeline is, for those who watch it."""
