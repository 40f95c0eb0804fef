"""The two processes of ``bench.handoff_copy``: the exporter, and the puller, which measures.

Needs cupy, which only GPU machines have.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import msgspec
import torch
from cupy.cuda import runtime

from transport.copy.cuda import CudaMemory, close_handle, open_handle
from transport.copy.cuda_pull import CudaCopyStream, CudaPull
from transport.copy.kernel import CopyShape
from transport.copy.pull import Wanted
from transport.copy.region import Region
from transport.copy.selftest import PeerTest, probe_peer, write_pattern
from transport.copy.tensors import CacheTensors
from transport.wire.layout import PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.offers import Offer
from worker.pairtest import FULL_SIZE as LAYOUT

INSTANCE = "prefill-bench"
EPOCH = 7
CEILING_GB_PER_S = {"kernel": 370.0, "memcpy": 396.0}
DONE_S = 30.0
WARM_UPS = 3


@dataclass(frozen=True)
class Case:
    """Handoffs of prompts of ``num_tokens`` wanted together."""

    num_tokens: int
    num_handoffs: int

    @property
    def pages_each(self) -> int:
        return LAYOUT.pages_for(self.num_tokens)

    @property
    def num_bytes(self) -> int:
        return self.num_handoffs * (self.pages_each * LAYOUT.page_bytes + LAYOUT.state_slot_bytes)


def export(device: int, size: PoolSize) -> None:
    """Print the export as a line, and stay until the input ends."""
    torch.cuda.set_device(device)
    memory = CudaMemory()
    cache = CacheTensors.over(memory.allocate(Region.of(LAYOUT, size).size_bytes), LAYOUT, size)
    cache.epochs.fill_(EPOCH)
    for kind, blocks in enumerate((cache.kv, cache.conv, cache.recurrent)):
        for block in range(len(blocks)):
            _words(blocks[block]).copy_(_content(kind, block, blocks[block].nbytes // 8, device))
    write_pattern(cache, INSTANCE)
    torch.cuda.synchronize()
    export = MemoryExport(memory.kind, memory.handle, memory.size_bytes, LAYOUT, size)
    sys.stdout.write(msgspec.json.encode(export).decode() + "\n")
    sys.stdout.flush()
    sys.stdin.read()


class Bench:
    """The pulling process: copies from the export into its own region on ``device``."""

    def __init__(self, export: MemoryExport, device: int, size: PoolSize, repeats: int) -> None:
        torch.cuda.set_device(device)
        memory = CudaMemory()
        buffer = memory.allocate(Region.of(LAYOUT, size).size_bytes)
        self._own = CacheTensors.over(buffer, LAYOUT, size)
        self._export, self._device, self._size, self._repeats = export, device, size, repeats
        self._generator = torch.Generator().manual_seed(0)

    def selftest(self) -> dict[str, Any]:
        """Run a worker's self-test, and measure how long opening and testing take."""
        stream = CudaCopyStream(self._own, after_steps=False)
        began = time.perf_counter()
        stream.open(INSTANCE, self._export)
        opened = time.perf_counter()
        test: PeerTest = probe_peer(stream, self._own, INSTANCE)
        ended = time.perf_counter()
        stream.close_peer(INSTANCE)
        row = {
            "gb_per_s": round(test.bytes_per_s / 1e9, 1),
            "problem": test.problem,
            "open_ms": round(1e3 * (opened - began), 2),
            "test_ms": round(1e3 * (ended - opened), 2),
        }
        print(f"self-test: {row}", file=sys.stderr)
        return row

    def plain(self, case: Case) -> list[dict[str, Any]]:
        """Time ``cudaMemcpyAsync`` of as many bytes: in one piece, and block by block."""
        address = open_handle(self._export.handle, peer=INSTANCE)
        own, base = self._own.kv.data_ptr(), Region.of(LAYOUT, self._size).kv
        # The copied bytes may lie anywhere in the region: only the time counts here.
        room = self._export.size_bytes - base
        states = [LAYOUT.state_slot_bytes] * case.num_handoffs
        blocks = [LAYOUT.page_bytes] * (case.pages_each * case.num_handoffs) + states
        stream = torch.cuda.Stream()

        def copy(sizes: list[int]) -> None:
            offset = 0
            for size in sizes:
                offset = offset if offset + size <= room else 0
                runtime.memcpyAsync(
                    own + offset, address + base + offset, size,
                    runtime.memcpyDeviceToDevice, stream.cuda_stream,
                )  # fmt: skip
                offset += size

        rows = []
        for name, sizes in (("memcpy", [case.num_bytes]), ("memcpy a block", blocks)):
            with torch.cuda.stream(stream):
                us = [_elapsed_us(partial(copy, sizes)) for _ in range(self._repeats + WARM_UPS)]
            rows.append(_row(case, name, _median(us)))
        close_handle(address)
        return rows

    def pulled(self, case: Case, shape: CopyShape) -> dict[str, Any]:
        """Time and check one case in one shape."""
        us, wall_us = [], []
        stream = CudaCopyStream(self._own, after_steps=False, shape=shape)
        stream.open(INSTANCE, self._export)
        for repeat in range(self._repeats + WARM_UPS):
            wanted = self._wanted(case)
            if repeat == self._repeats + WARM_UPS - 1:
                self._spoil()
            began = time.perf_counter()
            pulls = [pull for pull in stream.pull(wanted) if isinstance(pull, CudaPull)]
            assert all(pull.wait(DONE_S) for pull in pulls), f"a copy took more than {DONE_S} s"
            wall_us.append(1e6 * (time.perf_counter() - began))
            first, last = pulls[0].batch.launch, pulls[-1].batch.launch
            us.append(1e3 * first.began.elapsed_time(last.finished))
            for pull in pulls:
                pull.result()
        wrong = sum(self._wrong_bytes(each) for each in wanted)
        stream.close_peer(INSTANCE)
        return _row(case, "kernel", _median(us)) | {
            **asdict(shape), "max_us": round(max(us[WARM_UPS:]), 1), "wall_us": _median(wall_us),
            "wrong_bytes": wrong,
        }  # fmt: skip

    def _wanted(self, case: Case) -> list[Wanted]:
        """Random pages and state slots at both ends, no target twice."""
        each = case.pages_each
        pages = [self._shuffled(self._size.num_pages) for _ in range(2)]
        slots = [self._shuffled(self._size.num_state_slots) for _ in range(2)]
        found = []
        for i in range(case.num_handoffs):
            theirs, ours = (tuple(ids[i * each : (i + 1) * each]) for ids in pages)
            offer = Offer(INSTANCE, theirs, slots[0][i], EPOCH, case.num_tokens)
            found.append(Wanted(offer, ours, slots[1][i]))
        return found

    def _shuffled(self, n: int) -> list[int]:
        shuffled: list[int] = torch.randperm(n, generator=self._generator).tolist()
        return shuffled

    def _spoil(self) -> None:
        for tensor in (self._own.kv, self._own.conv, self._own.recurrent):
            tensor.zero_()
        torch.cuda.synchronize()

    def _wrong_bytes(self, wanted: Wanted) -> int:
        offer = wanted.offer
        kv, conv, recurrent = self._own.kv, self._own.conv, self._own.recurrent
        blocks = [(0, there, kv[here]) for there, here in
                  zip(offer.block_table, wanted.block_table, strict=True)]  # fmt: skip
        blocks.append((1, offer.state_slot, conv[wanted.state_slot]))
        blocks.append((2, offer.state_slot, recurrent[wanted.state_slot]))
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for kind, block, found in blocks:
            expected = _content(kind, block, found.nbytes // 8, self._device)
            wrong += (_words(found).view(torch.uint8) != expected.view(torch.uint8)).sum()
        return int(wrong)


def _elapsed_us(work: Callable[[], object]) -> float:
    """Time of ``work`` on the current stream, by the GPU's clock."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return 1e3 * float(began.elapsed_time(ended))


def _median(us: list[float]) -> float:
    return round(statistics.median(us[WARM_UPS:]), 1)


def _words(block: torch.Tensor) -> torch.Tensor:
    return block.view(-1).view(torch.int64)


def _content(kind: int, block: int, num_words: int, device: int) -> torch.Tensor:
    """The words that the exporter wrote into a block: all different within the region."""
    first = (kind * 1_000_003 + block) * num_words
    words = torch.arange(first, first + num_words, dtype=torch.int64, device=f"cuda:{device}")
    return words * 0x1F123BB5159A55E5 ^ (words >> 7)


def _row(case: Case, how: str, us: float) -> dict[str, Any]:
    gb_per_s = case.num_bytes / us / 1e3
    ceiling = CEILING_GB_PER_S["kernel" if how == "kernel" else "memcpy"]
    row = {
        "how": how, "num_tokens": case.num_tokens, "handoffs": case.num_handoffs,
        "mib": round(case.num_bytes / 2**20, 1), "us": round(us, 1),
        "gb_per_s": round(gb_per_s, 1),
        "of_ceiling": round(gb_per_s / ceiling, 3),
    }  # fmt: skip
    print(
        f"{how:15s} {case.num_handoffs:3d} x {case.num_tokens:6d}  {us:9.1f} us"
        f"  {gb_per_s:6.1f} GB/s", file=sys.stderr,
    )  # fmt: skip
    return row
