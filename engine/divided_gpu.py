"""A GPU whose multiprocessors are divided: a part for decode steps, the rest for prompts.

Several divisions are prepared, and one at a time is in use. The parts are CUDA's green
contexts. A kernel keeps to the part of the stream that it is enqueued on, or that its graph was
captured on, and computes the same bits there: what a program computes of a result does not depend
on the part.

Source: CUDA driver API, "Green Contexts".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.multiprocessors import note_part

STEPS_SHARES = 0.3, 0.48, 0.6
"""The steps' share of the multiprocessors in each division. Of an H200's 132: 40, 64 and 80
(docs/disaggregation.md)."""
_MULTIPLE = 8
"""The driver divides multiprocessors in multiples of this (compute capability 9.0)."""
_FIRST = -5
"""The stream priority of steps: CUDA takes the highest that there is."""


class CannotDivide(Exception):
    """This GPU or driver has no green contexts; the message says what is missing."""


@dataclass(frozen=True, eq=False)
class Division:
    """Streams of both parts, with their numbers of multiprocessors."""

    steps: torch.cuda.Stream
    prompts: torch.cuda.Stream
    num_for_steps: int
    num_for_prompts: int

    @classmethod
    def of(cls, device: int, share: float) -> "Division":
        """Divide ``device``, with ``share`` of it for steps. Raises CannotDivide."""
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise CannotDivide(f"cuda.bindings is not installed ({error})") from None
        gpu = _driver(driver.cuDeviceGet(device))
        kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        every = _driver(driver.cuDeviceGetDevResource(gpu, kind))
        wanted = max(_MULTIPLE, round(share * every.sm.smCount / _MULTIPLE) * _MULTIPLE)
        (part,), _, rest = _driver(driver.cuDevSmResourceSplitByCount(1, every, 0, wanted))
        steps, prompts = (
            _stream(driver, gpu, each, priority) for each, priority in ((part, _FIRST), (rest, 0))
        )
        note_part(steps, part.sm.smCount)
        note_part(prompts, rest.sm.smCount)
        return cls(steps, prompts, part.sm.smCount, rest.sm.smCount)


@dataclass
class DividedGpu:
    """A GPU with its ``divisions``. ``in_use``: the one whose part for prompts computes some, so
    all other work keeps to its part for steps; None: all work has the whole GPU."""

    divisions: tuple[Division, ...]
    in_use: Division | None = None

    @classmethod
    def of(cls, device: int, shares: Sequence[float] = STEPS_SHARES) -> "DividedGpu":
        """Divide ``device`` once for each of the steps' ``shares``. Raises CannotDivide."""
        return cls(tuple(Division.of(device, share) for share in shares))

    @property
    def total(self) -> int:
        """The number of multiprocessors of the GPU."""
        return self.divisions[0].num_for_steps + self.divisions[0].num_for_prompts

    def use(self, division: Division | None) -> None:
        """Let what this thread enqueues from now on keep to the steps' part of ``division``, or
        have the whole GPU; in either case it runs behind what was enqueued before.

        A kernel of the whole GPU would wait for those of the prompts, however small it is.
        """
        if division is self.in_use:
            return
        before = torch.cuda.current_stream()
        following = torch.cuda.default_stream() if division is None else division.steps
        following.wait_stream(before)
        torch.cuda.set_stream(following)
        self.in_use = division


def _stream(driver: Any, gpu: Any, part: Any, priority: int) -> torch.cuda.Stream:
    """A stream of a new green context. Neither is ever destroyed: they live as the process."""
    described = _driver(driver.cuDevResourceGenerateDesc([part], 1))
    flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    context = _driver(driver.cuGreenCtxCreate(described, gpu, flags))
    kind = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
    stream = _driver(driver.cuGreenCtxStreamCreate(context, kind, priority))
    return torch.cuda.ExternalStream(int(stream))


def _driver(returned: tuple[Any, ...]) -> Any:
    """What a function of the driver returned behind its status. Raises CannotDivide."""
    status, *values = returned
    if status.value:
        raise CannotDivide(f"the driver refuses: {status.name}")
    return values[0] if len(values) == 1 else values
