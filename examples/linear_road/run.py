"""Run Linear Road on files and write the answers as the benchmark's checkers read them.

    python examples/linear_road/run.py INPUT.csv HISTORY.csv OUTPUT.csv [--rules paper|walmart] [--store DIR]

INPUT and HISTORY may be compressed (.xz, .gz). A run that was interrupted goes on where it was, if the store is kept.
"""

import argparse
import gzip
import lzma
import shutil
import tempfile
from pathlib import Path

import polars as pl

import holdfast as hf
from road import HISTORY, INPUT, linear_road

FIELDS = {
    0: ["type", "vid", "time", "emit", "lav", "amount"],
    1: ["type", "time", "emit", "xway", "seg", "dir", "vid"],
    2: ["type", "time", "emit", "time", "qid", "amount"],
    3: ["type", "time", "emit", "qid", "amount"],
}
"""The columns of each kind of answer. When it was emitted is left empty: files do not arrive in time."""


def unpacked(path: Path, folder: Path) -> Path:
    """The file itself, or its content in the folder if it is compressed."""
    opener = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix)
    if opener is None:
        return path
    plain = folder / path.stem
    if not plain.exists():
        draft = plain.with_suffix(".tmp")
        with opener(path) as packed, draft.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
        draft.rename(plain)
    return plain


def write_answers(answers: pl.DataFrame, output: Path) -> None:
    lines = [
        answers.filter(pl.col("type") == kind).select(
            pl.concat_str(
                [pl.lit("") if name == "emit" else pl.col(name).cast(pl.String) for name in names], separator=","
            )
        )
        for kind, names in FIELDS.items()
    ]
    output.write_text("".join(f"{line}\n" for frame in lines for line in frame.to_series()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path)
    parser.add_argument("history", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rules", choices=["paper", "walmart"], default="paper")
    parser.add_argument("--store", type=Path, help="kept after the run; by default a temporary directory")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        store = given.store or Path(temporary)
        store.mkdir(parents=True, exist_ok=True)
        feeder = hf.source.files(unpacked(given.input, store), format="csv", schema=INPUT, has_header=False)
        history = pl.read_csv(unpacked(given.history, store), has_header=False, schema=HISTORY)
        pipeline = linear_road(feeder, history, hf.sink.parquet(store / "answers"), given.rules)
        print(hf.run(pipeline, store=store / "store", until_idle=True))
        write_answers(pl.read_parquet(store / "answers"), given.output)


if __name__ == "__main__":
    main()
