"""Whether the members of a group compute their next decode step together. Pure.

A group begins to where that promises a gain (spread_gain.py), or from a number of tokens on, and
goes on for a little less, or it would go in and out.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil

from decode.spread_gain import Load, SpreadGain
from decode.spread_table import StepTable, shipped
from engine.spread.shapes import Shapes, SpreadShape
from transport.wire.spread import MAX_ROWS

DEFAULT = "auto"
"""Default of ``--spread``, as in docker-compose.yml, .env.example and
deploy/kubernetes/base/workers.env."""
ENTERS_FROM = {"estimated": 1.1, "measured": 1.03}
"""Gain in tokens per second over local steps from which a group enters spread steps, by the source
of the times. A group that has entered stays while the gain is at least 1."""
MOST_KEPT = 1024
STAYS_ABOVE = 0.75
"""Where ``--spread`` is a number of tokens: a group stays with so much of them."""
WITHOUT_DRAFTS: Shapes = (SpreadShape(MAX_ROWS),)


class SpreadPolicy:
    """``setting``: ``auto``, or the tokens of all members from which a group begins to spread its
    steps. ``drafts``, ``shapes``, ``table`` (None: the shipped one) and ``num_sharing`` are those
    of SpreadGain. What was computed is kept as long as the policy is: loads change more rarely than
    steps are taken."""

    def __init__(
        self,
        setting: str,
        drafts: tuple[int, ...] = (0,),
        shapes: Shapes = WITHOUT_DRAFTS,
        table: StepTable | None = None,
    ) -> None:
        table = table or shipped()
        self._setting = setting
        self._source_of = table.source_of
        gain = SpreadGain(drafts, shapes, table)
        self._gain = lru_cache(MOST_KEPT)(gain.gain)
        self._saved_ms = lru_cache(MOST_KEPT)(gain.saved_ms)
        self._draft_costs = lru_cache(MOST_KEPT)(gain.draft_costs)

    def enters(self, loads: Sequence[Load], num_sharing: int) -> bool:
        if self._setting == "auto":
            return self.gain(loads, num_sharing) >= ENTERS_FROM[self._source_of(num_sharing)]
        return num_sharing > 1 and _tokens(loads) >= int(self._setting)

    def stays(self, loads: Sequence[Load], num_sharing: int) -> bool:
        if self._setting == "auto":
            return self.gain(loads, num_sharing) >= 1.0
        return num_sharing > 1 and _tokens(loads) >= ceil(int(self._setting) * STAYS_ABOVE)

    def gain(self, loads: Sequence[Load], num_sharing: int) -> float:
        """Tokens a second of spread steps, over those of local ones; 0 where there are none."""
        return self._gain(_kept(loads), num_sharing)

    def saved_ms(self, loads: Sequence[Load], num_sharing: int, num_drafts: int) -> float:
        """How much longer a step would take the other members with one member less to share it."""
        return self._saved_ms(_kept(loads), num_sharing, num_drafts)

    def draft_costs(self, loads: Sequence[Load], num_sharing: int) -> tuple[float, ...]:
        """What a spread step with 1, 2, … drafts takes, in spread steps without, as far as the
        largest member has room for them."""
        return self._draft_costs(_kept(loads), num_sharing)


def require_spread(setting: str, name: str = "spread") -> None:
    """Raise ValueError naming the setting unless it is ``auto``, ``off`` or a number."""
    if setting not in ("auto", "off") and not (setting.isdecimal() and int(setting) >= 1):
        raise ValueError(f"{name}: {setting!r} is not auto, off or a number of token rows")


def spread_on(setting: str, device: str, num_gpus: int) -> str:
    """The setting of a worker that sees ``num_gpus`` GPUs: ``auto`` is off without a second GPU.
    Any other setting stays, so that the worker logs why it takes no spread steps."""
    has_peers = device == "cuda" and num_gpus > 1
    return "off" if setting == "auto" and not has_peers else setting


def _tokens(loads: Sequence[Load]) -> int:
    return sum(load.tokens for load in loads)


def _kept(loads: Sequence[Load]) -> tuple[Load, ...]:
    """All that a gain depends on, in whatever order."""
    return tuple(sorted(Load(load.rows, 0, load.acceptance) for load in loads))
