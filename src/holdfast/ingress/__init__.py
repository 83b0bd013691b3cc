"""Receivers of input that cannot be asked for again: HTTP, WebSocket, Arrow Flight, lines of TCP, and MQTT.

What a client sends is decoded, written to a p-stream and acknowledged once it is durable. Sent again with the same
batch id, it is not taken twice. `server` runs all receivers of a pipeline; `http`, `flight` and `tcp` are one protocol
each; `target` is what they share of a source; `body_rows` turns bytes into rows.
"""

from holdfast.ingress.server import IngressServer

__all__ = ["IngressServer"]
