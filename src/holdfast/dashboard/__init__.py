"""The pages of `holdfast ui`: what the store and its events say, for a browser and for Prometheus."""
