"""What runs inside a Spark task: reading, the exchange between stages, and assembly. Nothing here knows the driver."""
