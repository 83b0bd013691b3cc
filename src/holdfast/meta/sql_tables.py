"""The tables of the meta store."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = [
    "batches",
    "clients",
    "commands",
    "deployments",
    "entries",
    "epochs",
    "info",
    "leases",
    "markers",
    "metadata",
    "notices",
    "outputs",
    "pipelines",
    "repairs",
    "replicas",
    "streams",
]

metadata = sa.MetaData()

info = sa.Table(
    "holdfast", metadata, sa.Column("key", sa.String, primary_key=True), sa.Column("value", sa.String, nullable=False)
)
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("pipeline", sa.String, primary_key=True),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.String, nullable=False),
    sa.Column("expires", sa.Float, nullable=False),
)
pipelines = sa.Table(
    "pipelines",
    metadata,
    sa.Column("pipeline", sa.String, primary_key=True),
    sa.Column("shape", sa.Text, nullable=False),
)
epochs = sa.Table(
    "epochs",
    metadata,
    sa.Column("pipeline", sa.String, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("plan", sa.Text, nullable=False),
    sa.Column("planned_at", sa.Float, nullable=False),
    sa.Column("record", sa.Text),
    sa.Column("committed_at", sa.Float),
)
outputs = sa.Table(
    "outputs",
    metadata,
    sa.Column("pipeline", sa.String, primary_key=True),
    sa.Column("sink", sa.String, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("place", sa.Text),
    sa.Column("receipts", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("closed", sa.BigInteger),
)
commands = sa.Table(
    "commands",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("pipeline", sa.String, nullable=False, index=True),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("asked_at", sa.Float, nullable=False),
    sa.Column("answer", sa.Text),
    sa.Column("answered_at", sa.Float),
)
streams = sa.Table(
    "streams",
    metadata,
    sa.Column("stream", sa.String, primary_key=True),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("watermark", sa.BigInteger),
    sa.Column("ended", sa.Boolean, nullable=False),
)
entries = sa.Table(
    "stream_entries",
    metadata,
    sa.Column("stream", sa.String, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("written_at", sa.Float, nullable=False),
)
markers = sa.Table(
    "stream_markers",
    metadata,
    sa.Column("stream", sa.String, primary_key=True),
    sa.Column("kind", sa.String, primary_key=True),
    sa.Column("by", sa.String, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
)
batches = sa.Table(
    "stream_batches",
    metadata,
    sa.Column("stream", sa.String, primary_key=True),
    sa.Column("batch", sa.String, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("offset", sa.BigInteger, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("taken_at", sa.Float, nullable=False),
)
clients = sa.Table(
    "stream_clients",
    metadata,
    sa.Column("stream", sa.String, primary_key=True),
    sa.Column("client", sa.String, primary_key=True),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("taken_at", sa.Float, nullable=False),
)
deployments = sa.Table(
    "deployments",
    metadata,
    sa.Column("pipeline", sa.String, primary_key=True),
    sa.Column("description", sa.Text, nullable=False),
)
replicas = sa.Table(
    "replicas",
    metadata,
    sa.Column("fragment", sa.String, primary_key=True),
    sa.Column("seats", sa.Text, nullable=False),
    sa.Column("primary_token", sa.BigInteger),
    sa.Column("secondary_token", sa.BigInteger),
    sa.Column("sharing", sa.Boolean, nullable=False),
    sa.Column("notes", sa.Text, nullable=False),
    sa.Column("ended", sa.Boolean, nullable=False),
)
repairs = sa.Table(
    "repairs",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("pipeline", sa.String, nullable=False, index=True),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("asked_at", sa.Float, nullable=False),
    sa.Column("outcome", sa.Text),
    sa.Column("done_at", sa.Float),
)
notices = sa.Table(
    "notices",
    metadata,
    sa.Column("pipeline", sa.String, primary_key=True),
    sa.Column("notices", sa.Text, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
)
