"""The data about an epoch: its plan, the hand-over, the messages between its tasks, its record and its report."""
