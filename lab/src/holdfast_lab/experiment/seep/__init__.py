"""SEEP (SIGMOD 2013), scale out and fault tolerance by operator state management: recovery of the word count, what
checkpoints cost, and scaling under a load that rises."""
