"""What older versions did not note: whether the last commit was published."""

from __future__ import annotations

import json
from pathlib import Path

import sqlalchemy as sa

from holdfast.meta import MetaStore, OutputMeta
from holdfast.meta.outputs import unpublished_before_version_6
from holdfast.meta.sql_tables import epochs, outputs


def test_the_last_output_of_an_older_version_may_not_be_published_yet(tmp_path: Path) -> None:
    meta = MetaStore(tmp_path, sync=False)
    file = {"part": "0", "file": "0-a.parquet", "rows": 1, "bytes": 10}
    receipts = {"out": [file], "stream": [{"from": [0], "unit": {"name": "u"}, "rows": 1}], "none": []}
    with meta.writing() as connection:
        outputs.drop(connection)
        for epoch, record in ((1, {"receipts": {"out": [file]}}), (2, {"receipts": receipts}), (3, None)):
            text = None if record is None else json.dumps(record)
            values = {"pipeline": "p", "epoch": epoch, "plan": "{}", "planned_at": 0.0, "record": text}
            connection.execute(sa.insert(epochs).values(values))
        unpublished_before_version_6(connection)
        assert OutputMeta("p").gathered(connection) == {"out": 10}
        OutputMeta("p").close(connection, "out")
        [group] = OutputMeta("p").groups(connection)
    assert (group.name, group.receipts, group.places) == (("out", 2), (file,), frozenset())
    meta.close()
