"""Stateful operators: for each its tables, step, merges, footprints, replay and explanation, in one place.

`contract.py` says what an operator gives, `registry.py` lists them all. They know nothing of Spark.
"""
