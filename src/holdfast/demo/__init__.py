"""What `holdfast demo` runs: a small pipeline with made-up input, in a process that is killed and started again."""
