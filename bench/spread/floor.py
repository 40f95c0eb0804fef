"""Where a step's time goes, by groups of kernels, and the least that each could take.

The floor of a group is the time to move its bytes once at the speed of a device copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.step_floor import COPY_BYTES_PER_S, bytes_by_group
from engine.model.config import ModelConfig

GROUPS: Mapping[str, tuple[str, ...]] = {
    "gate and up": ("gate_up_kernel", "_gate_up_kernel"),
    "down": ("_down_kernel",),
    "states": ("_update_kernel",),
    "dense": ("_linear_kernel", "_norm_linear_kernel", "_conv_linear_kernel"),
    "attention": ("_chunk_kernel", "_merge_kernel"),
    "rows out": ("_route_push_kernel",),
    "rows in": ("_agree_kernel", "_collect_kernel"),
    "results in": ("_take_up_kernel",),
}
REST = "the rest"


@dataclass(frozen=True)
class Group:
    """``us`` of a step that a group's kernels took, waits included; ``floor_us`` 0: nothing that
    is counted has to be moved."""

    us: float
    floor_us: float

    @property
    def times_floor(self) -> float | None:
        return round(self.us / self.floor_us, 2) if self.floor_us else None


def by_group(
    us_and_calls: Mapping[str, list[float]], floors: Mapping[str, float]
) -> dict[str, Group]:
    """``us_and_calls`` of a step are by kernel, ``floors`` in us by group."""
    us = dict.fromkeys((*GROUPS, REST), 0.0)
    for kernel, (took, _) in us_and_calls.items():
        us[next((group for group, names in GROUPS.items() if kernel in names), REST)] += took
    return {
        group: Group(round(took, 1), round(floors.get(group, 0.0), 1)) for group, took in us.items()
    }


def floors_us(config: ModelConfig, rows: int, sharing: int, context: int) -> dict[str, float]:
    """Least time in µs of each group of kernels on an H200, as ``bytes_by_group`` has the bytes."""
    moved = bytes_by_group(config, rows, context, sharing)
    return {group: 1e6 * each / COPY_BYTES_PER_S["H200"] for group, each in moved.items()}
