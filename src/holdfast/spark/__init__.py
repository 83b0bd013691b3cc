"""Spark: the session, the Java behind it, and the jobs that run epochs on it."""
