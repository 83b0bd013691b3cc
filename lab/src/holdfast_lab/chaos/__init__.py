"""Faults on purpose: a query runs in a process of its own, is killed at random moments, and must put out the same
rows as without a fault."""
