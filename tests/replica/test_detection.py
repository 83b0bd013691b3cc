"""Whether a failure can be noticed in time for the guarantee, told before anything starts."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import DeclarationError
from holdfast.replica.deployment import check_detection
from holdfast.replica.keeper import Timing
from holdfast.replica.schemes import wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION

TIMING = Timing(beat=0.25, detection=1.0)


def asking(recovery: float | None) -> hf.Pipeline:
    return hf.Pipeline("clicks", guarantee=None if recovery is None else hf.Guarantee(recovery=recovery))


@pytest.mark.parametrize("recovery", [None, 1.6, 60.0])
def test_what_can_be_noticed_in_time_is_not_worth_a_word(recovery: float | None) -> None:
    for scheme in (None, *wheel.SCHEMES):
        assert check_detection(asking(recovery), scheme, TIMING) is None


def test_a_scheme_that_notices_too_late_is_refused_with_the_cure() -> None:
    for scheme in wheel.SCHEMES:
        if scheme is ACTIVE_REPLICATION:
            assert check_detection(asking(1.0), scheme, TIMING) is None
            continue
        with pytest.raises(DeclarationError, match=r"no gap in the output longer than 1 s, .* up to 1\.5 s") as caught:
            check_detection(asking(1.0), scheme, TIMING)
        assert "--detection 0.5 --beat 0.12" in caught.value.cure
        assert check_detection(asking(1.0), scheme, Timing(beat=0.12, detection=0.5)) is None, "the cure cures"


def test_without_a_scheme_it_is_said_which_one_is_left() -> None:
    said = check_detection(asking(1.0), None, TIMING)
    assert said is not None
    assert "only active replication" in said
    assert "--detection 0.5" in said
    hopeless = check_detection(asking(0.1), None, TIMING)
    assert hopeless is not None
    assert hopeless.endswith("ask for a longer recovery")
