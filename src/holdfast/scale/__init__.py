"""Scaling while running: a cluster to run on, and a pool of workers that wait for work."""
