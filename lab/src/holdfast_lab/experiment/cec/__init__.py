"""CEC (DSN 2011), continuous eventual checkpoints: what footprints cost, what their targets do, and the other policies
on the same windows."""
