"""Lookup tables: what streams are joined with, and looked at again while the pipeline runs."""
