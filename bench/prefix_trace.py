"""``python -m bench.prefix_trace TRACE...``: the share of a trace's prompts found in the prefix
cache.

Each trace is replayed through the index, the policy and the allocator of a worker's prefix cache,
as one cache, without a device, at the sizes of a model and of the given memory. An LRU of blocks
that needs no states is replayed beside it, with the same bytes. Requests come one after the other,
in order of time, with their answers (bench/trace_tokens.py), so running requests hold no memory.
Requests send no boundaries, as completions do not.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import result_file
from bench.environment import describe
from bench.harness.workload.plan import Planned
from bench.harness.workload.traces import Trace
from bench.replayed_caches import BlockLru, Cache, Prefixes, Request
from bench.trace_tokens import continues, turns
from engine.cache.prefix_policy import MIN_SAVED_TOKENS
from engine.model.registry import read_config
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.prefix import PrefixKeys

MODEL = Path(__file__).parent / "models" / "qwen3.5-35b-a3b"
PAGE_SIZE = 64
BLOCK_LEN = 512
GB = 10**9


def main(
    traces: Annotated[list[Path], typer.Argument(help="Trace files.")],
    device_gb: Annotated[float, typer.Option(help="Device memory for pages and states.")] = 160,
    host_gb: Annotated[float, typer.Option(help="Host memory of the second run.")] = 256,
    state_share: Annotated[float, typer.Option(help="Of device memory for state slots.")] = 0.2,
    num_requests: Annotated[int, typer.Option(help="The first so many; 0: all.")] = 0,
    out: Annotated[Path, typer.Option(help="Result file.")] = Path(
        "bench/results/prefix-traces.json"
    ),
) -> None:
    """Replay, and write the token hit rates."""
    layout = read_config(MODEL).cache_layout("bfloat16", PAGE_SIZE)
    results: dict[str, Any] = {}
    for path in traces:
        trace = Trace.read("trace", str(path))
        plan = trace.plan[: num_requests or None]
        results[trace.name] = {
            "requests": len(plan),
            "prompt_tokens": sum(planned.input_len for planned in plan),
            "next_turns": sum(earlier is not None for earlier in continues(plan)),
        }
        for continued in (False, True):
            caches = _caches(layout, device_gb, host_gb, state_share, answers=continued)
            found = _replay(plan, caches, continued=continued)
            results[trace.name]["continued" if continued else "exact"] = found
            print(trace.name, "continued" if continued else "exact", found, flush=True)
    settings = {
        "device_gb": device_gb,
        "host_gb": host_gb,
        "state_share": state_share,
        "page_bytes": layout.page_bytes,
        "state_slot_bytes": layout.state_slot_bytes,
        "block_len": BLOCK_LEN,
        "min_saved_tokens": MIN_SAVED_TOKENS,
    }
    document = result_file.document(
        "prefix-traces",
        environment=describe(sys.argv[1:], "bench.prefix_trace"),
        settings=settings,
        results=results,
    )
    result_file.save(out, document)


def _caches(
    layout: CacheLayout, device_gb: float, host_gb: float, state_share: float, *, answers: bool
) -> dict[str, Cache]:
    device, host = int(device_gb * GB), int(host_gb * GB)
    num_slots = int(device * state_share) // layout.state_slot_bytes
    num_pages = (device - num_slots * layout.state_slot_bytes) // layout.page_bytes
    pools = PoolSize(num_pages, num_slots)
    block_bytes = layout.page_bytes * BLOCK_LEN // layout.page_size
    return {
        "lru": BlockLru(device // block_bytes, BLOCK_LEN, answers=answers),
        "ours": Prefixes(layout, pools, 0, MIN_SAVED_TOKENS),
        "lru_with_host": BlockLru((device + host) // block_bytes, BLOCK_LEN, answers=answers),
        "ours_with_host": Prefixes(layout, pools, host, MIN_SAVED_TOKENS),
    }


def _replay(
    plan: Sequence[Planned], caches: dict[str, Cache], *, continued: bool
) -> dict[str, Any]:
    """The share of prompt tokens that each cache had, and its time per request."""
    hits = dict.fromkeys(caches, 0)
    taken_s = dict.fromkeys(caches, 0.0)
    for turn in turns(plan, continued=continued):
        request = Request(
            turn.prompt,
            PrefixKeys("model", "", turn.prompt, PAGE_SIZE),
            PrefixKeys("model", "", turn.whole, PAGE_SIZE),
            PrefixKeys("model", "", turn.whole, BLOCK_LEN),
        )
        for name, cache in caches.items():
            began = time.perf_counter()
            hits[name] += cache.serve(request)
            taken_s[name] += time.perf_counter() - began
    total = sum(planned.input_len for planned in plan)
    rates = {name: num / total for name, num in hits.items()}
    for cache in caches.values():
        if isinstance(cache, Prefixes) and (problem := cache.check()):
            raise AssertionError(problem)
    return {
        "hit_rate": rates,
        "times_lru": rates["ours"] / rates["lru"],
        "times_lru_with_host": rates["ours_with_host"] / rates["lru_with_host"],
        "cpu_ms_a_request": {name: 1000 * s / len(plan) for name, s in taken_s.items()},
    }


if __name__ == "__main__":
    typer.run(main)
