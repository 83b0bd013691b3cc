"""When state becomes durable, and what must be kept to restart from."""
