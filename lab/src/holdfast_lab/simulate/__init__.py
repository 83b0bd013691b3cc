"""The shipped code in simulated worlds of faults, and the controller under simulated days of load."""
