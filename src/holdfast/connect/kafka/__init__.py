"""Kafka: how to reach its brokers, what messages hold, and reading and writing them."""
