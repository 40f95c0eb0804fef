"""The formulas of TTFT, ITL, TPOT, E2E and TBT, for one request and for many.

- TTFT: from the time when the request was due to its first token.
- ITL: every gap between arrivals of tokens; tokens that arrive at one instant are one arrival.
- TPOT: (end - first token) / (n - 1) for n verified tokens; it is a mean, so tokens that share an
  event change nothing.
- E2E: from the time when the request was due to the end of its response.
- TBT, as Mooncake (FAST '25) defines it: the mean of the longest tenth of a request's gaps.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.harness.client.record import Record

BURST = 0.5
"""An ITL p50 under this share of the TPOT p50: most tokens arrive together with others."""


def tpot_s(record: Record, num_tokens: int) -> float | None:
    """Time per output token; None without streaming, without a token, or with only one."""
    if not record.streamed or not record.arrivals or num_tokens < 2:
        return None
    return (record.done_at_s - record.arrivals[0].at_s) / (num_tokens - 1)


def tbt_s(gaps: Sequence[float]) -> float | None:
    """The mean of the longest tenth (at least one) of ``gaps``; None of none."""
    if not gaps:
        return None
    return fmean(sorted(gaps)[-math.ceil(len(gaps) / 10) :])


def tokens_per_arrival(records: Sequence[Record], num_tokens: Sequence[int]) -> float | None:
    """Mean number of tokens per arrival: 1 if each token has an event of its own."""
    arrivals = sum(len(record.arrivals) for record in records)
    return sum(num_tokens) / arrivals if arrivals else None


def in_bursts(level: Mapping[str, Any]) -> bool:
    """True if most tokens of a level arrive together with others, as with drafts: its ITL p50 is
    then the gap within a burst. ``level``: as a result file has it."""
    itl, tpot = (level.get(key) for key in ("itl_ms", "tpot_ms"))
    return bool(itl and tpot and itl["p50"] < BURST * tpot["p50"])
