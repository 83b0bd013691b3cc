"""Measuring: the papers' queries on input that is never the bottleneck, on Holdfast and on plain Spark."""
