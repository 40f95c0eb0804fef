"""Draws on their way from a CUDA device to the host, which does not wait until it reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.batch import Sampled
from engine.download import download
from engine.step import Draw


@dataclass(frozen=True)
class PinnedDraw(Draw):
    """A draw whose ``ids`` are in pinned memory once ``copied`` has passed; ``on_device`` has the
    same ids on the device."""

    copied: torch.cuda.Event | None = None
    on_device: torch.Tensor | None = None

    @classmethod
    def of(cls, drawn: Draw, on_host: torch.Tensor) -> "PinnedDraw":
        """Start copying ``drawn``, whose ids a kernel writes to the pinned ``on_host`` too; the
        event is behind that kernel."""
        copies, copied = download(*(drawn.logprobs or ()))
        logprobs = (copies[0], copies[1], copies[2]) if copies else None
        return cls(on_host, drawn.logprob_rows, logprobs, drawn.errors, copied, drawn.ids)

    @property
    def device_ids(self) -> torch.Tensor:
        assert self.on_device is not None, "a draw that was not copied"
        return self.on_device

    @property
    def is_known(self) -> bool:
        assert self.copied is not None, "a draw that was not copied"
        return bool(self.copied.query())

    def wait(self) -> None:
        assert self.copied is not None, "a draw that was not copied"
        self.copied.synchronize()

    def to_host(self) -> list[Sampled]:
        self.wait()
        return super().to_host()


@dataclass(frozen=True)
class DrawInBlocks(Draw):
    """Draws of blocks of a pass's rows; ``ids`` are the ids of all rows, on the device."""

    parts: tuple[PinnedDraw, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[PinnedDraw]) -> "DrawInBlocks":
        return cls(torch.cat([part.device_ids for part in parts]), parts=tuple(parts))

    @property
    def host_ids(self) -> torch.Tensor:
        return torch.cat([part.host_ids for part in self.parts])

    @property
    def is_known(self) -> bool:
        return self.parts[-1].is_known

    def wait(self) -> None:
        self.parts[-1].wait()

    def to_host(self) -> list[Sampled]:
        return [sampled for part in self.parts for sampled in part.to_host()]
