"""An encoding that Holdfast does not have, written as `docs/extending.md` says: one class, and its place among the
candidates. It is tried, chosen, written into cascades and read back, and nothing else knows of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pytest
from codec_columns import NUMBER_TYPES, assert_same_bits, columns, numbers, through_a_file
from common_factor import CommonFactor
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UnknownVersionError
from holdfast.pstream.codecs import BitPack, Chooser, Delta, Encoding, chooser, decode_frame, encode_frame, encoding
from holdfast.pstream.codecs.costs import Costs
from holdfast.pstream.codecs.encoding import EncodingMisfitError, Parts, decode_numbers, encode_numbers, exactly
from strategies import examples

TIMES = pl.DataFrame({"at": np.random.default_rng(0).permutation(20_000) * 86_400_000_000 + 7})
encoding._known.pop("common-factor", None)  # other tests, which are collected in the same process, know nothing of it
CASCADES = [CommonFactor(), CommonFactor(BitPack()), CommonFactor(Delta()), Delta(CommonFactor(BitPack()))]


@pytest.fixture(autouse=True, scope="module")
def known() -> Iterator[None]:
    encoding._known["common-factor"] = CommonFactor
    yield
    encoding._known.pop("common-factor", None)


@pytest.mark.parametrize("cascade", CASCADES, ids=str)
@given(data=st.data())
@examples(20)
def test_numbers_come_back_bit_for_bit_or_do_not_suit_it(cascade: Encoding, data: st.DataObject) -> None:
    values = data.draw(st.sampled_from(NUMBER_TYPES).flatmap(numbers))
    parts = Parts()
    try:
        meta = encode_numbers(cascade, values, parts)
    except EncodingMisfitError:
        return
    assert exactly(decode_numbers(meta, parts), values.dtype).tobytes() == values.tobytes()


@pytest.mark.parametrize("cascade", CASCADES, ids=str)
@given(column=columns(text=False))
@examples(8)
def test_columns_come_back_with_their_nulls(cascade: Encoding, column: pl.Series) -> None:
    encoded = encode_frame(column.to_frame(), {"c": cascade})
    assert_same_bits(decode_frame(through_a_file(encoded.table))["c"], column)


def test_it_makes_what_suits_it_smaller_and_leaves_the_rest_to_the_safe_one() -> None:
    encoded = encode_frame(TIMES, {"at": CommonFactor(BitPack())})
    assert encoded.fallbacks == {}
    assert encoded.sizes["at"] < TIMES.height * 2
    assert decode_frame(through_a_file(encoded.table)).equals(TIMES)
    odd = pl.DataFrame({"at": [7, 10, 12]})
    assert encode_frame(odd, {"at": CommonFactor()}).fallbacks == {"at": "the values have no common factor"}


def test_the_chooser_takes_it_where_it_is_the_best_of_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    known = chooser.candidates

    def candidates(*given: Any) -> list[Encoding]:
        plain, *others = known(*given)
        return [plain, CommonFactor(BitPack()), *others]  # the lightest come first, and win where they are as good

    monkeypatch.setattr(chooser, "candidates", candidates)
    one = Chooser(1e6, costs=Costs(clock=lambda: 0.0), clock=lambda: 0.0)
    one.observe(TIMES)
    assert str(one.plan()["at"]) == "common-factor(bit-pack)"
    assert one.reasons()["at"].startswith("common-factor(bit-pack)")


def test_a_program_that_does_not_know_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode_frame(TIMES, {"at": CommonFactor()})
    monkeypatch.delitem(encoding._known, "common-factor")
    with pytest.raises(UnknownVersionError, match="a column is encoded as 'common-factor'"):
        decode_frame(encoded)
