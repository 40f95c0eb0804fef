"""How long the device computes a batch, however late the host comes to read its results, and with
how many multiprocessors."""

import time

import torch

from engine.multiprocessors import multiprocessors


class Timer:
    """Begins when the work that ``device``'s current stream has now is computed. ``stop`` is called
    behind the last work of the batch, on the same stream. A CPU computes each batch at once."""

    def __init__(self, device: torch.device) -> None:
        self.num_multiprocessors = multiprocessors(device)
        self._began = self._ended = None
        self._began_s, self._took_s = time.perf_counter(), 0.0
        if device.type == "cuda":
            self._began = torch.cuda.Event(enable_timing=True)
            self._ended = torch.cuda.Event(enable_timing=True)
            self._began.record()

    def stop(self) -> None:
        """The batch has no more work."""
        self._took_s = time.perf_counter() - self._began_s
        if self._ended is not None:
            self._ended.record()

    @property
    def is_over(self) -> bool:
        """Whether ``wait`` does not wait."""
        return self._ended is None or self._ended.query()

    @property
    def took_s(self) -> float | None:
        """Seconds; None while the device still computes, as it does with the next drafts when the
        tokens of a step are known."""
        if self._began is None or self._ended is None:
            return self._took_s
        return self._began.elapsed_time(self._ended) / 1000 if self._ended.query() else None

    def wait(self) -> None:
        """Wait until the batch is computed."""
        if self._ended is not None:
            self._ended.synchronize()
