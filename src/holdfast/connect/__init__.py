"""Connectors: how rows come into a pipeline and leave it. `base` holds the contracts; `holdfast.source` and
`holdfast.sink` list what there is."""
