"""The stateless operators, one module each: what a user declares, and what the rest of Holdfast asks of it."""
