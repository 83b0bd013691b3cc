"""Scabbard (VLDB 2022), single-node fault-tolerant stream processing: the eleven queries on three engines, persistence,
checkpoints, recovery, and what push-up and compression save."""
