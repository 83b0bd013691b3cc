"""StreamMine3G: the fault-tolerance schemes on real hosts, and the controller that chooses among them."""
