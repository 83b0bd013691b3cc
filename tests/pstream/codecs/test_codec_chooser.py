"""The chooser finds the obvious encoding, weighs time against bytes, and follows a stream that changes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import count

import numpy as np
import polars as pl
import pytest

from holdfast.pstream.codecs import (
    Chooser,
    Constant,
    Dictionary,
    Encoding,
    Lossy,
    Plain,
    decode_frame,
    encode_frame,
)
from holdfast.pstream.codecs.costs import Costs, Estimate, Line
from holdfast.pstream.codecs.frame import Encoded
from holdfast.pstream.codecs.statistics import have_moved, sample_of, statistics_of
from holdfast_lab.codecs.codec_measurements import FIXED, StreamReplay, measure, replay_change
from holdfast_lab.codecs.distributions import DISTRIBUTIONS, column

SLOW_DISK, FAST_DISK = 1e6, 1e15


def chooser(bandwidth: float = SLOW_DISK, lossy: list[Lossy] | None = None, **settings: float) -> Chooser:
    """With clocks that stand still: choices depend on bytes, not on how busy the machine is."""
    return Chooser(bandwidth, lossy or [], costs=Costs(clock=lambda: 0.0), clock=lambda: 0.0, **settings)


class CostsByLength(Costs):
    """The longer the name of an encoding, the longer it takes; plain takes no time."""

    def _time(self, encoding: Encoding, sample: pl.Series) -> float:
        return 1e-9 * len(sample) * (len(str(encoding)) - len("plain"))


def chosen(series: pl.Series, bandwidth: float = SLOW_DISK, lossy: list[Lossy] | None = None) -> str:
    one = chooser(bandwidth, lossy)
    one.observe(series.alias("value").to_frame())
    return str(one.plan()["value"])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("timestamps, regular", ["delta(base-delta(bit-pack))", "delta(delta(zigzag(bit-pack)))"]),
        ("timestamps, crowded", ["run-length(delta(base-delta(bit-pack)), bit-pack)"]),
        ("timestamps, jittered", ["delta(base-delta(bit-pack))", "pco(0)"]),
        ("integers, small", ["base-delta(bit-pack)", "pco(0)"]),
        ("integers, runs", ["run-length(base-delta(bit-pack), bit-pack)"]),
        ("integers, random", ["plain"]),
        ("strings, few", ["dictionary(bit-pack)"]),
        ("strings, many", ["text(bytes(zstd), narrow)"]),
        ("floats, decimal", ["decimal(base-delta(bit-pack))", "pco(0)"]),
    ],
)
def test_the_obvious_encoding_is_chosen_when_the_disk_is_slow(name: str, expected: list[str]) -> None:
    assert chosen(column(name, 100_000)) in expected


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_nothing_is_encoded_when_the_disk_is_faster_than_any_encoding(name: str) -> None:
    one = Chooser(FAST_DISK, costs=CostsByLength())
    one.observe(column(name, 20_000).to_frame())
    assert one.plan()["value"] == Plain()


def test_constants_need_no_bytes() -> None:
    assert chosen(pl.Series([7] * 10_000)) == str(Constant())
    assert chosen(pl.Series(["same"] * 10_000)) == str(Dictionary(Constant()))


def test_a_dictionary_is_found_though_a_sample_holds_mostly_distinct_values() -> None:
    random = np.random.default_rng(0)
    names = pl.Series([f"customer-{number:036}" for number in random.integers(0, 10_000, 10_000)])
    assert chosen(names.gather(random.integers(0, 10_000, 400_000))).startswith("dictionary")


def test_lossy_encodings_are_candidates_only_on_request() -> None:
    series = column("floats, random", 50_000)
    assert "scaled" not in chosen(series)
    assert "scaled" in chosen(series, lossy=[Lossy("value", 0.01)])


def test_every_choice_is_explained() -> None:
    one = chooser()
    one.observe(pl.DataFrame({"a": np.random.default_rng(0).integers(0, 100, 5_000), "l": [[1]] * 5_000}))
    assert list(one.reasons()) == ["a"]
    assert "bytes" in one.reasons()["a"]
    assert "cheapest at 1 MB/s; next is" in one.reasons()["a"]


def run(one: Chooser, batches: list[pl.Series]) -> list[int]:
    """Encode and observe each batch; the numbers of the batches after which the plan changed."""
    changed = []
    ticks = itertools.count(step=1e-4)  # what encoding really takes must not matter here
    for number, series in enumerate(batches):
        frame = series.alias("value").to_frame()
        encoded = encode_frame(frame, one.plan(), clock=ticks.__next__)
        assert decode_frame(encoded).equals(frame)
        if one.observe(frame, encoded):
            changed.append(number)
    return changed


def small(seed: int) -> pl.Series:
    return column("integers, small", 20_000, seed)


def runs(seed: int) -> pl.Series:
    return column("integers, runs", 20_000, seed) + (seed << 40)


def test_the_plan_changes_once_with_the_stream() -> None:
    one = chooser()
    changed = run(one, [small(seed) for seed in range(6)] + [runs(seed) for seed in range(6)])
    assert changed[0] == 0
    assert len(changed) == 2
    assert changed[1] in (6, 7)
    assert str(one.plan()["value"]).startswith("run-length")
    assert "was " in one.reasons()["value"] or "kept" in one.reasons()["value"]


def test_a_stream_that_stays_as_it_is_keeps_its_plan() -> None:
    assert run(chooser(), [small(seed) for seed in range(15)]) == [0]


def test_a_plan_that_falls_back_is_reviewed_at_once() -> None:
    one = chooser(share=0.0)
    constant = pl.Series([5] * 5_000)
    assert run(one, [constant, constant, pl.Series(np.arange(5_000) * 1_000)]) == [0, 2]


def test_an_encoding_that_takes_longer_than_expected_is_reviewed() -> None:
    """The calibration says it takes no time; the encoder says a second per batch, again and again."""
    one = chooser()
    frame = small(0).alias("value").to_frame()
    one.observe(frame)
    slow = one.plan()["value"]
    changed = []
    for _ in range(4):
        seconds = iter([0.0, 1.0])
        changed += one.observe(frame, encode_frame(frame, {"value": slow}, clock=seconds.__next__))
    assert changed == ["value"]
    assert one.plan()["value"] != slow


def test_a_small_advantage_does_not_change_the_plan() -> None:
    random = np.random.default_rng(0)
    one = chooser(gain=0.9)
    assert run(one, [pl.Series(random.integers(0, top, 20_000)) for top in (1_000, 4_000, 1_000, 70_000)]) == [0]


def test_a_much_faster_disk_changes_the_plan() -> None:
    one = Chooser(SLOW_DISK, costs=CostsByLength())
    frame = small(0).alias("value").to_frame()
    one.observe(frame)
    before: Encoding = one.plan()["value"]
    one.set_bandwidth(1.2 * SLOW_DISK)
    assert one.plan()["value"] == before
    one.set_bandwidth(FAST_DISK)
    one.observe(frame)
    assert one.plan()["value"] == Plain()


def test_looking_for_change_stays_within_its_share_of_the_time() -> None:
    """Each look takes a second of this clock, each batch a minute of encoding; two per cent allow a look per batch."""
    ticks = map(float, count())
    one = Chooser(SLOW_DISK, costs=Costs(clock=lambda: 0.0), clock=ticks.__next__)
    frame = small(0).alias("value").to_frame()
    one.observe(frame)
    seconds = (tick * 25.0 for tick in count())
    before = next(ticks)
    for _ in range(40):
        one.observe(frame, encode_frame(frame, one.plan(), clock=seconds.__next__))
    looks = (next(ticks) - before - 1) / 2
    assert 15 <= looks <= 25


def test_statistics_are_stable_within_a_distribution_and_move_between_them() -> None:
    for name in DISTRIBUTIONS:
        seen = [statistics_of(sample_of(column(name, 50_000, seed), 2_048, seed)) for seed in range(3)]
        assert not have_moved(seen[0], seen[1]), name
        assert not have_moved(seen[0], seen[2]), name
    assert have_moved(statistics_of(small(0)), statistics_of(runs(0)))
    assert have_moved(statistics_of(column("floats, decimal", 2_048)), statistics_of(column("floats, random", 2_048)))


@pytest.mark.parametrize("distinct", [10, 1_000, 100_000])
def test_the_number_of_distinct_values_is_foreseen(distinct: int) -> None:
    values = pl.Series(np.random.default_rng(0).integers(0, distinct, 1_000_000))
    seen = statistics_of(values.head(2_048))
    assert seen.distinct_in(1_000_000) == pytest.approx(min(1.0, distinct / 1_000_000), rel=0.5)


def test_a_line_tells_what_is_paid_once_from_what_is_paid_per_row() -> None:
    assert Line.through(10, 25.0, 20, 45.0) == Line(5.0, 2.0)
    assert Line.through(10, 20.0, 10, 20.0) == Line(0.0, 2.0)


def test_the_measurements_run() -> None:
    rows = measure(rows=2_000, seconds=0.1)
    assert {row["data"] for row in rows} == set(DISTRIBUTIONS)
    assert all(row["ratio"] > 0 and row["encode_gb_s"] > 0 and row["decode_gb_s"] > 0 for row in rows)
    replayed = {row["scheme"]: row for row in replay_change(batches=8, rows=20_000, bandwidth=SLOW_DISK)}
    adaptive = replayed.pop("adaptive")
    assert adaptive["switches"][0] == 0
    assert len(adaptive["switches"]) >= 2
    assert adaptive["bytes_before"] + adaptive["bytes_after"] < min(
        row["bytes_before"] + row["bytes_after"] for row in replayed.values()
    )


@pytest.mark.parametrize("fixed", [None, FIXED["lz4"]])
def test_a_replay_counts_by_part_what_was_written(fixed: Encoding | None) -> None:
    written: list[Encoded] = []
    replay = StreamReplay("some", FAST_DISK, fixed, written.append)
    for part, number in (("before", 0), ("before", 1), ("after", 2)):
        assert replay.step(part, small(number).to_frame()) > 0
    row = replay.row()
    assert [one.rows for one in written] == [len(small(0))] * 3
    assert row["bytes_before"] == sum(one.nbytes for one in written[:2])
    assert row["rows_after"] == written[2].rows
    assert row["wall_seconds_after"] > 0
    assert bool(row["switches"]) == (fixed is None)


def test_an_encoding_that_disappointed_is_not_believed_again() -> None:
    """Where a sample flatters an encoding, what it really came to is remembered while the stream stays as it is."""

    class Flattering(Costs):
        def estimate(self, encoding: Encoding, sample: pl.Series, series: pl.Series) -> Estimate | None:
            found = super().estimate(encoding, sample, series)
            if found is not None and "lz4" in str(encoding):
                return replace(found, bytes=found.bytes / 100)
            return found

    generator = np.random.default_rng(5)
    one = Chooser(SLOW_DISK, costs=Flattering(clock=lambda: 0.0), clock=lambda: 0.0)
    changes = 0
    for _ in range(12):
        batch = pl.DataFrame({"value": generator.integers(0, 1 << 40, 4_096)})
        changes += len(one.observe(batch, encode_frame(batch, one.plan())))
    assert changes <= 4
    assert "lz4" not in str(one.plan()["value"])


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64, pl.String, pl.Boolean])
def test_a_column_of_nulls_takes_no_space(dtype: type[pl.DataType]) -> None:
    batch = pl.DataFrame({"value": pl.Series([None] * 5_000, dtype=dtype)})
    one = chooser()
    one.observe(batch)
    encoded = encode_frame(batch, one.plan())
    assert encoded.nbytes < 100
    assert decode_frame(encoded).equals(batch)
    later = pl.DataFrame({"value": pl.Series([None, 1, 2], dtype=pl.Int64).cast(dtype)})
    assert decode_frame(encode_frame(later, one.plan())).equals(later)
