"""Running a pipeline: the epochs of a fragment are planned, run, committed and published."""
