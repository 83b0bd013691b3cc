"""What `hf.testing` is made of: runs in one process, crashes at every step, and the suites for sources and sinks."""
