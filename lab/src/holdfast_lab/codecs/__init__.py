"""Measurements of the encodings of p-units."""
