"""Lookup tables: what `stream.join_table(...)` joins a stream with, and reads anew while the pipeline runs.

`files`, `delta` and `database` make one. The version of the table that an epoch uses is part of its plan, so that a
replay sees the same. A table of your own is a subclass of `Lookup`.
"""

import typing as _typing

from holdfast.connect.lookups.lookup_table import Lookup
from holdfast.connect.lookups.query_lookup import database
from holdfast.connect.lookups.source_lookup import delta, files
from holdfast.renamed import attribute_error as _attribute_error

__all__ = ["Lookup", "database", "delta", "files"]


if not _typing.TYPE_CHECKING:  # a type checker would take it to say that every name is here

    def __getattr__(name):
        raise _attribute_error(name, "hf.lookup", "module 'holdfast.lookup'")
