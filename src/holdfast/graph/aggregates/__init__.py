"""Aggregates of windows: what one is (`aggregate`), and a module for each kind. `holdfast/__init__.py` lists them."""
