"""From how many tokens on the members of a group compute a decode step together. Pure.

A spread step reads each active expert once for all members, and exchanges tokens 80 times: of each
sequence the certain one, and its drafts. Few tokens have few experts in common, so that local steps
are faster.
"""

from dataclasses import dataclass
from math import ceil

DEFAULT = "off"
"""Of ``--spread``. To be ``auto`` when spread steps have run on GPUs: then in docker-compose.yml,
.env.example and deploy/kubernetes/base/workers.env too."""
PAYS_FROM = {2: 48, 3: 40, 4: 32}
"""Tokens of all members, by how many share the experts; with more, as of the most. Estimates
from the floor of a step and the measured exchange, until the steps themselves are measured."""
STAYS_ABOVE = 0.75
"""A group that has entered stays with so much of the tokens, or it would go in and out."""


@dataclass(frozen=True)
class SpreadPolicy:
    """``setting``: ``auto``, or the tokens of all members from which a group begins to spread its
    steps. ``num_sharing``: the members that decode, and the lenders that have nothing to do."""

    setting: str

    def enters(self, total: int, num_sharing: int) -> bool:
        return num_sharing > 1 and total >= enter_rows(self.setting, num_sharing)

    def stays(self, total: int, num_sharing: int) -> bool:
        enough = ceil(enter_rows(self.setting, num_sharing) * STAYS_ABOVE)
        return num_sharing > 1 and total >= enough


def require_spread(setting: str, name: str = "spread") -> None:
    """Raise ValueError naming the setting unless it is ``auto``, ``off`` or a number."""
    if setting not in ("auto", "off") and not (setting.isdecimal() and int(setting) >= 1):
        raise ValueError(f"{name}: {setting!r} is not auto, off or a number of token rows")


def enter_rows(setting: str, num_sharing: int) -> int:
    """Under ``auto`` or a number."""
    if setting == "auto":
        return PAYS_FROM.get(max(num_sharing, min(PAYS_FROM)), PAYS_FROM[max(PAYS_FROM)])
    return int(setting)
