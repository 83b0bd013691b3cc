"""What Spark finds Holdfast's data source by: it imports packages whose names begin with `pyspark_` when a format is
asked for that it does not know. So `spark.read.format("holdfast")` works in every session, without being registered."""

from holdfast.spark.front_door import HoldfastSource as DefaultSource

__all__ = ["DefaultSource"]
