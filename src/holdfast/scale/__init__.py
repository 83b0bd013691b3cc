"""Scaling while running: reports of CPU use, a detector of bottlenecks, a policy, and a coordinator that acts on it; a
cluster to run on, and a pool of workers that wait for work.

The detector, the splits and the policy are pure. The autoscaler feeds them with the reports of epochs; the coordinator
asks the running pipeline for what they decide.
"""
