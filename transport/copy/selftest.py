"""The self-test of two workers: a known pattern is copied, and every byte compared.

exporter   before hello: fills the first half of its probe (region.py) with a pattern derived from
           its instance.
puller     before the pair is used: clears the second half of its own probe, pulls the exporter's
           first half into it with its copy stream, and compares on its own device.

The probe is in the exported region and is copied like any handoff, so a fault of a handoff's path
(mapping, driver, namespaces, addresses, the copy itself) shows here too. The test uses no page or
state slot of a pool: a pair can be tested while both its ends are busy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import torch

from transport.copy.pull import CopyStream, Wanted
from transport.copy.region import PROBE
from transport.copy.tensors import CacheTensors
from transport.wire.errors import PeerError
from transport.wire.memory_export import MemoryKind
from transport.wire.offers import Offer

EPOCH = 1
NUM_PAGES = PROBE.num_pages // 2
EXPORTED, RECEIVED = 0, 1
"""The halves of a probe, and their state slots."""
NUM_ROUNDS = 3
TIMEOUT_S = 3.0
SLOW_BYTES_PER_S: dict[MemoryKind, float] = {"cuda-ipc": 150e9, "shm": 0.1e9}
"""Slower pairs are used, with a warning: NVLink gives 350 GB/s, PCIe 50."""
_TELLING_BYTES: dict[MemoryKind, int] = {"cuda-ipc": 32 << 20, "shm": 0}
"""A smaller probe, of a small model, is copied too quickly to measure the path."""

# A prime, so that blocks which were exchanged differ from the pattern.
_PERIOD_BYTES = 1_048_573


@dataclass(frozen=True)
class PeerTest:
    """The result of a test. ``problem`` is "" if every byte was right; otherwise it says what was
    wrong and what to look at. ``seconds``: the time of the fastest round."""

    num_bytes: int
    seconds: float
    problem: str = ""

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.seconds if self.seconds else 0.0

    def slow(self, kind: MemoryKind) -> bool:
        """True if the copy was slower than any correct path."""
        telling = self.num_bytes >= _TELLING_BYTES[kind]
        return telling and self.bytes_per_s < SLOW_BYTES_PER_S[kind]


def write_pattern(cache: CacheTensors, instance: str) -> None:
    """Fill the exported half of an exporter's own probe; complete when this returns."""
    probe = _half(cache, EXPORTED)
    probe.epochs.fill_(EPOCH)
    pattern = _pattern(instance, probe)
    for part in _parts(probe.kv, probe):
        for begin in range(0, len(part), len(pattern)):
            piece = part[begin : begin + len(pattern)]
            piece.copy_(pattern[: len(piece)])
    _finish(probe)


def probe_peer(stream: CopyStream, own: CacheTensors, instance: str) -> PeerTest:
    """Test the path from ``instance``, which ``stream`` has open, to this worker.

    Takes milliseconds, at most ``TIMEOUT_S`` a round. Faults of the peer or the path are in the
    result, not raised.
    """
    probe = _half(own, RECEIVED)
    for tensor in (probe.kv, probe.conv, probe.recurrent):
        tensor.zero_()
    _finish(probe)
    pages = tuple(range(PROBE.num_pages))
    # Pages in reverse, so that a copy which ignores the ids fails.
    offer = Offer(instance, pages[:NUM_PAGES][::-1], EXPORTED, EPOCH, num_tokens=0)
    wanted = Wanted(offer, pages[NUM_PAGES:], RECEIVED, in_probe=True)
    seconds, num_bytes = [], 0
    for _ in range(NUM_ROUNDS):
        (pull,) = stream.pull([wanted])
        if not pull.wait(TIMEOUT_S):
            problem = f"the copy from {instance} did not end within {TIMEOUT_S:g} s; {_ADVICE}"
            return PeerTest(0, 0.0, problem)
        try:
            copied = pull.result()
        except PeerError as error:
            return PeerTest(0, 0.0, f"this is not the memory of {instance}: {error}; {_ADVICE}")
        seconds.append(copied.copy_s)
        num_bytes = copied.num_bytes
    wrong = _num_wrong(probe, _pattern(instance, probe))
    problem = f"{wrong} of {num_bytes} bytes from {instance} arrived wrong; {_ADVICE}"
    return PeerTest(num_bytes, min(seconds), problem if wrong else "")


_ADVICE = (
    "look at `nvidia-smi topo -m` and the driver's log for errors of the link between the two "
    "GPUs, and whether both processes share what they need (driver, /proc of their own PID "
    "namespace, /dev/shm); `baton doctor` tests every pair"
)


def _num_wrong(probe: CacheTensors, pattern: torch.Tensor) -> int:
    wrong = torch.zeros((), dtype=torch.int64, device=pattern.device)
    for part in _parts(probe.kv.flip(0), probe):
        whole = len(part) // len(pattern) * len(pattern)
        wrong += (part[:whole].view(-1, len(pattern)) != pattern).sum()
        wrong += (part[whole:] != pattern[: len(part) - whole]).sum()
    return int(wrong)


def _parts(pages: torch.Tensor, probe: CacheTensors) -> Iterator[torch.Tensor]:
    """The three parts as plain bytes, uint8 [n] each."""
    for tensor in (pages, probe.conv, probe.recurrent):
        yield tensor.contiguous().view(-1).view(torch.uint8)


def _pattern(instance: str, probe: CacheTensors) -> torch.Tensor:
    """The pattern, uint8 [period] of 1 to 255: no byte is 0, as in a cleared probe."""
    period = min(_PERIOD_BYTES, max(len(part) for part in _parts(probe.kv, probe)))
    seed = int.from_bytes(blake2b(instance.encode(), digest_size=7).digest(), "big")
    draw = torch.Generator().manual_seed(seed)
    pattern = torch.randint(1, 256, (period,), generator=draw, dtype=torch.uint8)
    return pattern.to(probe.kv.device)


def _finish(probe: CacheTensors) -> None:
    """Wait until the writes to the probe are done, since a copy stream does not wait for them."""
    if probe.kv.is_cuda:
        torch.cuda.current_stream(probe.kv.device).synchronize()


def _half(cache: CacheTensors, half: int) -> CacheTensors:
    probe, slot = cache.probe, slice(half, half + 1)
    assert probe is not None, "a worker's region has a probe"
    pages = slice(half * NUM_PAGES, (half + 1) * NUM_PAGES)
    conv, recurrent, windows = (states[slot] for states in probe.states)
    epochs, kv = probe.epochs[slot], probe.kv[pages]
    return CacheTensors(epochs, kv, conv, recurrent, windows, probe.window_pages)
