"""Benchmarks of the service that start one stack after another, and load each through HTTP."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from bench.commands import END_S, PLAIN_SAMPLING, CommandFailed, baton_bench
from bench.harness.client.required import RequestFailed
from bench.prometheus import total
from bench.recording import Recording
from bench.stack import Stack, StackFailed, started

START_S = 170.0


class StackRuns(Recording):
    """The stacks of one run of ``python -m MODULE``."""

    def measure(
        self,
        name: str,
        arguments: Sequence[str],
        load: Callable[[Stack, dict[str, Any]], None],
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Start a stack and give it to ``load``, with the dictionary for its results. If the stack,
        a command or a request fails, that is a problem and ends the measurements of this stack."""
        row = self.results[name] = {}
        try:
            with started(*arguments, settings=settings, start_s=START_S) as served:
                load(served, row)
                served.stop()
        except (StackFailed, CommandFailed, RequestFailed, httpx.HTTPError) as error:
            self.problems.append(f"{name}: {error}")
        self.save()


def counted(url: str, names: Sequence[str]) -> dict[str, float]:
    """Counters of the service and its workers since their start, as of the last heartbeats."""
    text = httpx.get(f"{url}/metrics", timeout=END_S).raise_for_status().text
    return {name: total(text, [f"baton_{name}_total"]) or 0.0 for name in names}


def measured(
    served: Stack, counters: Sequence[str], kind: str, *options: str, within_s: float
) -> tuple[dict[str, Any], list[str]]:
    """Run ``baton bench KIND``. Returns its results, with the growth of ``counters``, and its
    problems. Raises CommandFailed, httpx.HTTPError."""
    before = counted(served.url, counters)
    with tempfile.TemporaryDirectory() as folder:
        document = baton_bench(
            kind, *options, *PLAIN_SAMPLING,
            url=served.url, out=Path(folder) / "run.json", within_s=within_s,
        ).document  # fmt: skip
    after = counted(served.url, counters)
    growth = {name: round(after[name] - before[name], 3) for name in counters}
    return document["results"] | {"counters": growth}, [*document["problems"]]
