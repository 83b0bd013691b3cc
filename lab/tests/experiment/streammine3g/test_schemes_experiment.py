"""The experiment `schemes` without its hosts: input by the clock, what is made of events, the table and its bars."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.pipeline_file import load_pipeline
from holdfast.connect.base import Slice
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast_lab.experiment.definition import Result
from holdfast_lab.experiment.result_files import named, write
from holdfast_lab.experiment.streammine3g.plain_restart import Restarted
from holdfast_lab.experiment.streammine3g.scheme_kills import SchemeKill
from holdfast_lab.experiment.streammine3g.scheme_recovery import EXPERIMENT, PLAIN, bars, bars_of_runs, plot, rows_of
from holdfast_lab.experiment.streammine3g.supervised_hosts import FragmentTimeline, HostUsage
from holdfast_lab.experiment.streammine3g.tidal_visits import (
    BLOCK_ROWS,
    TidalSource,
    Tide,
    Visits,
    write_blocks,
    write_pipeline,
)

USERS = 50


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tide") / "blocks"
    write_blocks(place, USERS, seed=3)
    return place


def test_a_tide_rises_and_falls_and_comes_again() -> None:
    tide = Tide(((10.0, 100.0), (5.0, 40.0)))
    assert [tide.rate(at) for at in (0.0, 9.9, 10.0, 14.9, 15.0)] == [100, 100, 40, 40, 100]
    assert [tide.until(at) for at in (-1.0, 0.0, 5.0, 10.0, 12.5, 15.0, 20.0)] == [0, 0, 500, 1000, 1100, 1200, 1700]


def test_rows_are_there_tick_by_tick_and_wait_for_a_reader(blocks: Path) -> None:
    now = [100.0]
    source = TidalSource(blocks, Tide(((60.0, 1000.0),)), 0.5, clock=lambda: now[0])
    first = source.take(source.start(), 10_000, 2)
    assert sum(piece.rows for piece in first.slices) == 1, "the first row holds the beginning"
    now[0] = 100.4
    assert source.take(first.position, 10_000, 2).slices == ()
    now[0] = 102.3
    assert source.lag(first.position) == 2000
    then = source.take(first.position, 10_000, 2)
    assert sum(piece.rows for piece in then.slices) == 2000
    assert sum(piece.rows for piece in source.take(first.position, 300, 2).slices) == 300


def test_a_slice_gives_the_same_rows_again_and_later_rounds_new_users(blocks: Path) -> None:
    source = TidalSource(blocks, Tide(((60.0, 1000.0),)), 0.5, fresh=USERS)
    again = pickle.loads(pickle.dumps(source))
    piece = replace(source.take(source.start(), 1, 1).slices[0], where={"start": 900, "stop": 2_100}, rows=1_200)
    once, twice = ([chunk.frame.rows() for chunk in origin.read(piece)] for origin in (source, again))
    assert once == twice
    assert sum(map(len, once)) == 1_200
    round_later = 200 * BLOCK_ROWS
    later = replace(piece, where={"start": round_later + 900, "stop": round_later + 2_100})
    shifted = [row for chunk in source.read(later) for row in chunk.frame.rows()]
    assert [row[0] for row in shifted] == [row[0] + USERS for chunk in once for row in chunk]


def test_fields_that_nobody_asks_for_are_in_the_lines_and_not_in_the_rows(blocks: Path, tmp_path: Path) -> None:
    write_blocks(tmp_path / "more", USERS, seed=3, others=4)
    sizes = [sum(path.stat().st_size for path in place.iterdir()) for place in (blocks, tmp_path / "more")]
    assert sizes[1] > 2 * sizes[0]
    source = TidalSource(tmp_path / "more", Tide(((60.0, 1000.0),)), 0.5)
    [chunk] = source.read(Slice(base=0, rows=10, where={"start": 0, "stop": 10}))
    assert chunk.frame.columns == ["user", "page", "bytes"]


def test_hosts_find_the_pipeline_in_the_file(blocks: Path, tmp_path: Path) -> None:
    asked = Visits(str(blocks), str(tmp_path / "out"), ((60.0, 1000.0),), recovery="2s")
    pipeline = load_pipeline(str(write_pipeline(tmp_path / "visits.py", asked)))
    pipeline.check()
    assert pipeline.guarantee.recovery_seconds == 2.0


def commit(at: float, took: float = 0.2) -> dict[str, Any]:
    return {"event": "commit", "started": at - took, "committed": at}


def test_what_hosts_tell_becomes_gaps_and_takeovers() -> None:
    tale = FragmentTimeline()
    for at in (1.0, 2.0, 1.5, 2.5):  # the files of two hosts are read one after the other
        tale.add(commit(at))
    tale.add({"event": "ready", "host": "b"})
    tale.add({"event": "takeover", "host": "b", "scheme": "deployed", "at": 5.0, "seconds": 0.8, "replayed": 3})
    for at in (5.1, 5.5, 9.0):
        tale.add(commit(at, 0.3))
    assert tale.usual(2.7) == 0.5
    assert tale.epoch(2.7) == pytest.approx(0.2)
    assert tale.gap(2.7, 5.5) == pytest.approx(2.6)
    assert tale.gap(0.5, 9.0) is None, "nothing was committed before"
    taken = tale.takeover_after(2.7)
    assert taken is not None
    assert (taken.host, taken.seconds, taken.replayed) == ("b", 0.8, 3)
    assert tale.takeover_after(5.0) is None
    assert tale.commits_after(5.0) == 3


RECOVERY = dict(zip(wheel.SCHEMES, (0.01, 0.1, 0.2, 0.6, 0.9, 6.0), strict=True))


def strike(scheme: Scheme, recovery: float, **more: Any) -> SchemeKill:
    figures = {
        "detection": 1.2, "gap": 1.2 + recovery, "usual": 0.5, "epoch": 0.2, "replayed": 3,
        "predicted": 1.2 * (1.2 + recovery), "at_worst": 2 * recovery, "secondary": HostUsage(0.5, 8e8, 1e6, 2e6, 1e5),
        "primary": HostUsage(1.0, 9e8),
    }  # fmt: skip
    return SchemeKill(scheme=scheme, recovery=recovery, **{**figures, **more})


def strikes() -> list[SchemeKill]:
    found = [strike(scheme, seconds * times) for scheme, seconds in RECOVERY.items() for times in (0.8, 1.0, 1.3)]
    return [
        replace(strike, gap=0.6, predicted=0.7) if strike.scheme is ACTIVE_REPLICATION else strike for strike in found
    ]


def test_a_row_is_of_the_median_kill() -> None:
    rows = rows_of(strikes(), [Restarted(9.0, 9.4), Restarted(11.0, 11.2), Restarted(8.0, 8.3)])
    assert [row["scheme"] for row in rows] == [*(scheme.name for scheme in wheel.SCHEMES), PLAIN]
    deployed = next(row for row in rows if row["scheme"] == "deployed")
    assert deployed["recovery_s"] == 0.9
    assert deployed["recovery_max_s"] == pytest.approx(1.17)
    assert deployed["predicted_off"] == pytest.approx(0.2)
    assert deployed["noticed_and_recovered_s"] == pytest.approx(2.37), "the worst, for which there is a bar"
    assert (deployed["cpus_over_primary"], deployed["memory_mb"]) == (0.5, 800)
    assert (rows[-1]["recovery_s"], rows[-1]["gap_s"]) == (9.0, 9.4)


def verdicts(found: list[SchemeKill]) -> dict[str, bool]:
    return {bar.name.partition(":")[0] + bar.name.rpartition(":")[2][:11]: bar.ok for bar in bars(rows_of(found, []))}


def test_bars_are_kept_or_missed_one_by_one() -> None:
    assert all(verdicts(strikes()).values())
    slow = [
        replace(strike, recovery=0.7, gap=1.9, predicted=1.9) if strike.scheme is HOT_STANDBY else strike
        for strike in strikes()
    ]
    assert [name[:10] for name, ok in verdicts(slow).items() if not ok] == ["neighbours", "passive st"], (
        "slower than cold"
    )
    not_standing = [
        replace(strike, recovery=0.4, gap=1.6, predicted=1.6) if strike.scheme is HOT_STANDBY else strike
        for strike in strikes()
    ]
    assert [name for name, ok in verdicts(not_standing).items() if not ok] == ["passive standby hot takeover, "]
    late = [replace(strike, detection=1.9) if strike.scheme is COLD_STANDBY else strike for strike in strikes()]
    assert [name for name, ok in verdicts(late).items() if not ok] == ["passive standby cold failure no"]
    stopped = [
        replace(strike, gap=1.4, predicted=1.4) if strike.scheme is ACTIVE_REPLICATION else strike
        for strike in strikes()
    ]
    assert [name[:18] for name, ok in verdicts(stopped).items() if not ok] == ["active replication"]
    unknown = [replace(strike, predicted=None) if strike.scheme is DEPLOYED else strike for strike in strikes()]
    assert [name for name, ok in verdicts(unknown).items() if not ok] == ["deployed prediction"]


def test_every_run_must_have_the_order_and_hold_its_predictions() -> None:
    good = strikes()
    swapped = [replace(kill, recovery=0.65) if kill.scheme is HOT_STANDBY else kill for kill in good]
    wrong = [replace(kill, predicted=3.0) if kill.scheme is HOT_STANDBY else kill for kill in good]
    assert (bars_of_runs([good, good]).value, bars_of_runs([good, good]).ok) == (2, True)
    for other in (swapped, wrong):
        bar = bars_of_runs([good, other, good])
        assert (bar.value, bar.bar, bar.ok) == (2, 3, False), "the median over all runs hides it"


def test_the_picture_and_the_json(tmp_path: Path) -> None:
    rows = rows_of(strikes(), [Restarted(9.0, 9.4)])
    also = {"strikes": [strike.to_json() for strike in strikes()]}
    result = Result(("scheme",), rows, bars=bars(rows), plot=lambda figure: plot(figure, rows), also=also)
    told = named(EXPERIMENT, result, True, 1.0)
    json.dumps(told, allow_nan=False)
    assert {path.suffix for path in write(result, told, tmp_path)} == {".json", ".png", ".svg"}
