"""The lab of Holdfast: benchmarks, chaos, simulation, workloads, and the experiments of the papers."""
