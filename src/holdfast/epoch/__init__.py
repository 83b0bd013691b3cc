"""Running a pipeline on Spark, epoch by epoch."""
