"""Generated input: the benchmarks whose data are synthetic, the same rows for the same arguments.

Event times start at 0 and go up evenly, `rows_per_second` rows in each second of event time, so a generated
frame can be replayed with shifted times. Randomness comes only from `seed`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = [
    "AD_TYPES",
    "EVENT_TYPES",
    "LANGUAGES",
    "YSB_ADS",
    "YSB_CAMPAIGNS",
    "cec_items",
    "keyed_events",
    "nexmark_bids",
    "page_views",
    "sentences",
    "ysb_ads",
    "ysb_events",
]

EVENT_TYPES = ("view", "click", "purchase")
"""What the codes 0, 1 and 2 of YSB's `event_type` mean."""

AD_TYPES = ("banner", "modal", "sponsored-search", "mail", "mobile")
"""What the codes 0 to 4 of YSB's `ad_type` mean."""

YSB_ADS = 1_000
YSB_CAMPAIGNS = 100

LANGUAGES = (
    "en", "de", "ja", "es", "fr", "ru", "it", "zh", "pt", "pl", "nl", "ar", "fa", "tr", "sv", "id", "ko",
    "cs", "fi", "uk", "he", "no", "hu", "da", "ro", "vi", "th", "el", "ca", "bg", "sr", "hr", "sk", "lt",
)  # fmt: skip
"""Language versions of an encyclopedia, from the most to the least visited."""

_HOT_SHARE = 0.5  # of the bids go to a hot auction
_OPEN_AUCTIONS = 1_000
_NEW_AUCTIONS_PER_SECOND = 10
_HOT_EVERY = 100  # one auction in this many is hot while it is among the newest
_WORD = 7  # bytes of a word and the space after it
_FRAGMENT = 140
_ITEM_PADDING = 76  # fills a tuple of CEC up to 100 bytes

Ints = NDArray[np.int64]


def ysb_events(rows: int, seed: int = 0, *, rows_per_second: int = 100_000) -> pl.DataFrame:
    """Ad events of the Yahoo Streaming Benchmark; `event_time` in milliseconds.

    `event_type` goes round 3 values and `ad_type` round 5, ads are uniform over 1,000.
    """
    rng = np.random.default_rng(seed)
    number = np.arange(rows, dtype=np.int64)
    return pl.DataFrame(
        {
            "user_id": rng.integers(0, 100_000, rows),
            "page_id": rng.integers(0, 10_000, rows),
            "ad_id": rng.integers(0, YSB_ADS, rows),
            "ad_type": (number % len(AD_TYPES)).astype(np.int8),
            "event_type": (number % len(EVENT_TYPES)).astype(np.int8),
            "event_time": _milliseconds(rows, rows_per_second),
            "ip": rng.integers(0, 2**32, rows, dtype=np.uint32).view(np.int32),
        }
    )


def ysb_ads() -> pl.DataFrame:
    """The static table of YSB: which of the 100 campaigns each of the 1,000 ads belongs to."""
    ads = np.arange(YSB_ADS, dtype=np.int64)
    return pl.DataFrame({"ad_id": ads, "campaign_id": ads // (YSB_ADS // YSB_CAMPAIGNS)})


def nexmark_bids(rows: int, seed: int = 0, *, rows_per_second: int = 10_000) -> pl.DataFrame:
    """Bids of an auction house; `date_time` in milliseconds.

    A thousand auctions are open at a time, ten of them are replaced each second. Half of the bids go to the
    hot auction: the newest whose number is a multiple of 100.
    """
    rng = np.random.default_rng(seed)
    time = _milliseconds(rows, rows_per_second)
    oldest = time * _NEW_AUCTIONS_PER_SECOND // 1_000
    newest = oldest + _OPEN_AUCTIONS - 1
    hot = newest // _HOT_EVERY * _HOT_EVERY
    auction = np.where(rng.random(rows) < _HOT_SHARE, hot, oldest + rng.integers(0, _OPEN_AUCTIONS, rows))
    channels = np.array(["apple", "baidu", "facebook", "google"], dtype=object)
    urls = np.array([f"https://auction.example/{code:08x}/item.htm" for code in range(1_000)], dtype=object)
    extras = np.array(["".join(rng.choice(list("abcdefgh"), 24)) for _ in range(100)], dtype=object)
    return pl.DataFrame(
        {
            "auction": auction,
            "bidder": rng.integers(0, 50_000, rows),
            "price": np.rint(np.exp(rng.uniform(np.log(100), np.log(1e7), rows))).astype(np.int64),
            "channel": _pick(channels, rng.integers(0, len(channels), rows)),
            "url": _pick(urls, rng.integers(0, len(urls), rows)),
            "date_time": time,
            "category": (auction % 5).astype(np.int32),
            "currency": rng.integers(0, 8, rows).astype(np.int32),
            "extra": _pick(extras, rng.integers(0, len(extras), rows)),
        }
    )


def page_views(rows: int, seed: int = 0, *, rows_per_second: int = 10_000) -> pl.DataFrame:
    """Page views of an encyclopedia; `view_time` in milliseconds.

    Languages are skewed: the n-th has 1/n of the views of the first.
    """
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, len(LANGUAGES) + 1)
    language = rng.choice(len(LANGUAGES), rows, p=weight / weight.sum())
    return pl.DataFrame(
        {
            "view_time": _milliseconds(rows, rows_per_second),
            "language": _pick(np.array(LANGUAGES, dtype=object), language),
            "page_id": rng.integers(0, 1_000_000, rows),
            "views": np.ones(rows, dtype=np.int32),
            "bytes": rng.integers(1_000, 200_000, rows),
        }
    )


def sentences(rows: int, seed: int = 0, *, distinct_words: int = 10_000, rows_per_second: int = 1_000) -> pl.DataFrame:
    """Fragments of text, 140 bytes and 20 words each, uniform over the words; `time` in milliseconds."""
    rng = np.random.default_rng(seed)
    words = _FRAGMENT // _WORD
    numbers = rng.integers(0, distinct_words, (rows, words))
    vocabulary = np.array([_spell(number) for number in range(distinct_words)], dtype=object)
    split = pl.DataFrame({f"word{i}": _pick(vocabulary, numbers[:, i]) for i in range(words)})
    text = split.select(pl.concat_str(pl.all(), separator=" ") + " ").to_series()
    return pl.DataFrame({"time": _milliseconds(rows, rows_per_second), "text": text})


def cec_items(rows: int, seed: int = 0, *, items: int = 1_000, rows_per_second: int = 10_000) -> pl.DataFrame:
    """Items with prices, 100 bytes each, ids uniform over `items`; `item_time` in milliseconds."""
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "item_id": rng.integers(0, items, rows),
            "item_price": np.round(rng.uniform(1, 1_000, rows), 2),
            "item_time": _milliseconds(rows, rows_per_second),
        }
    ).with_columns(pl.lit("x" * _ITEM_PADDING).alias("padding"))


def keyed_events(rows: int, seed: int = 0, *, keys: int = 1_000, rows_per_second: int = 100_000) -> pl.DataFrame:
    """Values with a key, uniform over `keys`; `event_time` in milliseconds."""
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "key": rng.integers(0, keys, rows),
            "value": rng.integers(0, 1_000, rows),
            "event_time": _milliseconds(rows, rows_per_second),
        }
    )


def _spell(number: int) -> str:
    """A word of six letters for each number below 26⁶."""
    letters = []
    for _ in range(_WORD - 1):
        number, digit = divmod(number, 26)
        letters.append(chr(ord("a") + digit))
    return "".join(reversed(letters))


def _milliseconds(rows: int, rows_per_second: int) -> Ints:
    return np.arange(rows, dtype=np.int64) * 1_000 // rows_per_second


def _pick(pool: NDArray[Any], at: Ints) -> pl.Series:
    return pl.Series(pool.tolist(), dtype=pl.String).gather(at)
