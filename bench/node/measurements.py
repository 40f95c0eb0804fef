"""The parts of a node's measurement: each writes its result file and returns its problems.

Those with a stack get it running; ``doctor`` and ``soak`` start what they need as processes of
their own. Each ends by its part's limit. Raises: CommandFailed, and what its tools raise.
"""

import asyncio
import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bench import commands, result_file, stack
from bench.commands import END_S, CommandFailed
from bench.handoff_stages import of_records, read_records
from bench.node import interference
from bench.node.plan import Kind, Mode, Part
from bench.node.settings import Settings

COUNTERS: Mapping[Mode, Sequence[str]] = {
    "plain": (),
    "spread": (
        "spread_steps", "spread_step_seconds", "spread_local_steps", "spread_local_step_seconds",
        "spread_aborts", "spread_wait_seconds",
    ),
    "drafts": ("drafts_verified", "drafts_accepted"),
}  # fmt: skip
"""Sums over the workers, beside the levels."""
_PAIR = re.compile(r"self-test +(?P<pair>\S+ -> \S+): every byte right, (?P<speed>[\d.]+) GB/s")


def levels(settings: Settings, part: Part, served: stack.Stack) -> list[str]:
    sizes = settings.sizes
    at_once = sizes.levels if part.served.mode == "plain" else sizes.mode_levels
    lengths = sizes.input_len, sizes.output_len
    more = ["--requests", str(sizes.requests), "--rounds", str(sizes.rounds)]
    document = _throughput(settings, part, served, at_once, lengths, more)
    if names := COUNTERS[part.served.mode]:
        _count(document, served, names)
    result_file.write(settings.file(part), document)
    return _problems(document)


def _count(document: dict[str, Any], served: stack.Stack, names: Sequence[str]) -> None:
    """Add to a result what the workers have counted since they started."""
    found = served.counters(names)
    problems = [f"{name} is not told" for name, value in found.items() if value is None]
    if found.get("spread_steps") == 0:
        problems.append("no step was spread")
    document["results"]["counters"] = found
    document["problems"] += problems
    document["ok"] = document["ok"] and not problems


def crowd(settings: Settings, part: Part, served: stack.Stack) -> list[str]:
    sizes = settings.sizes
    lengths = sizes.input_len, sizes.output_len
    more = ["--requests", str(max(sizes.crowds)), "--rounds", "1", "--spot-checks", "0"]
    document = _throughput(settings, part, served, sizes.crowds, lengths, more)
    result_file.write(settings.file(part), document)
    return _problems(document)


def handoff(settings: Settings, part: Part, served: stack.Stack) -> list[str]:
    """The stages of handoffs one at a time, and of long prompts some at a time."""
    problems, results = [], {}
    redis_url = stack.setting(served.pids()["coordinator"], "BATON_REDIS_URL")
    levels = settings.sizes.handoff_alone, settings.sizes.handoff_long
    for level in levels:
        more = ["--requests", str(level.requests), "--spot-checks", "0"]
        lengths, since = (level.input_len, level.output_len), time.time()
        problems += _problems(_throughput(settings, part, served, [level.at_once], lengths, more))
        found = of_records(r for r in read_records(redis_url) if (r.received_at or 0.0) >= since)
        results[str(level.input_len)] = found
        if not found["handoffs"]:
            problems.append(f"no handoff of {level.input_len} tokens is in Redis")
    return settings.write(part, {"levels": [asdict(each) for each in levels]}, results, problems)


def disturb(settings: Settings, part: Part, served: stack.Stack) -> list[str]:
    """The gaps between tokens of running streams, without and with long prompts arriving."""
    streams, arrivals = settings.sizes.streams, settings.sizes.arrivals
    load = interference.Load(
        *streams, num_arrivals=arrivals[0], arrival_prompt=arrivals[1], arrival_tokens=1,
        every_s=arrivals[2], vocab=_vocab(settings.model),
    )  # fmt: skip

    async def run() -> dict[str, Any]:
        async with asyncio.timeout(part.limit_s):
            return await interference.measure(served.url, load)

    found = asyncio.run(run())
    problems = list(found["arrivals"]["failed"])
    if not found["arrivals"]["within_steady"]:
        problems.append("no long prompt came and had its first token while all streams ran")
    return settings.write(part, {"load": asdict(load)}, {part.served.setup.name: found}, problems)


def doctor(settings: Settings, part: Part) -> list[str]:
    """``baton doctor``, with the self-test of every pair of GPUs."""
    command = ["deploy.cli", "doctor", "--device", settings.device, "--port", "0"]
    ended = commands.run(command, part.limit_s)
    speeds = {found["pair"]: float(found["speed"]) for found in _PAIR.finditer(ended.said)}
    said = ended.said.splitlines()
    problems = [line for line in said if line.startswith("fail")]
    if ended.exit_code and not problems:
        problems = [f"exit code {ended.exit_code}: {ended.said[-500:]}"]
    return settings.write(part, {}, {"said": said, "gb_per_s": speeds}, problems)


def soak(settings: Settings, part: Part) -> list[str]:
    """Handoffs under load with verified digests, while workers are killed."""
    size, num_ids = settings.sizes.soak, min(1_000, _vocab(settings.model))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "soak.json"
        command = [
            "tests.soak.handoffs", "--handoffs", str(size.handoffs), "--kills", str(size.kills),
            "--concurrency", str(size.concurrency), "--max-prompt", str(size.max_prompt),
            "--max-output", str(size.max_output), "--num-ids", str(num_ids),
            "--setting", "dead_after=60", "--start-s", str(part.limit_s),
            "--run-s", str(part.limit_s), "--out", str(out), "--", *settings.up(part.served),
        ]  # fmt: skip
        ended = commands.run(command, part.limit_s)
        if not out.exists():
            raise CommandFailed(f"exit code {ended.exit_code}: {ended.said[-2000:]}")
        found = json.loads(out.read_text())
    problems = list(found["failures"])
    if not found["passed"] and not problems:
        problems = [f"not passed: {ended.said[-500:]}"]
    return settings.write(part, {"plan": found.pop("plan")}, found, problems)


WITH_STACK: Mapping[Kind, Callable[[Settings, Part, stack.Stack], list[str]]] = {
    "levels": levels, "crowd": crowd, "handoff": handoff, "interference": disturb
}  # fmt: skip
WITHOUT_STACK: Mapping[Kind, Callable[[Settings, Part], list[str]]] = {
    "doctor": doctor, "soak": soak
}  # fmt: skip


def _throughput(
    settings: Settings, part: Part, served: stack.Stack, at_once: Sequence[int],
    lengths: tuple[int, int], more: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """The result of ``baton bench throughput`` with prompts and answers of these ``lengths``."""
    return commands.baton_bench(
        "throughput", "--tokenizer", str(settings.model), "--levels", ",".join(map(str, at_once)),
        "--input-len", str(lengths[0]), "--output-len", str(lengths[1]),
        "--time-limit-s", str(part.limit_s), *more,
        url=served.url, within_s=part.limit_s + END_S,
    ).document  # fmt: skip


def _problems(document: dict[str, Any]) -> list[str]:
    stopped = [f"stopped: {document['stopped']}"] if document["stopped"] else []
    return [*stopped, *document["problems"]]


def _vocab(model: Path) -> int:
    return int(Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size())
