"""LAAR (EDBT 2014), load-adaptive active replication: its example on real hosts, its search, and its variants
simulated."""
