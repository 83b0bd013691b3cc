"""The commands that the lab adds to `holdfast`: a module each, with a function of the same name."""

COMMANDS = {
    "bench": "Measure a query of the papers.",
    "compare": "Compare the speed of two checkouts.",
    "soak": "Run very many short epochs and check that nothing grows.",
    "chaos": "Run a query under faults and compare with the fault-free run.",
    "simulate": "Run the shipped code against faults in simulated worlds.",
    "experiment": "Repeat an experiment of the papers on this machine.",
}
