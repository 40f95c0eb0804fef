"""Benchmarks of the service that start one stack after another, and load each through HTTP."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from bench.commands import CommandFailed, baton_bench
from bench.harness.client.required import RequestFailed
from bench.recording import Recording
from bench.stack import Stack, StackFailed, started

START_S = 170.0
SPREAD_COUNTERS = (
    "spread_steps", "spread_step_seconds", "spread_local_steps", "spread_local_step_seconds",
    "spread_aborts", "spread_wait_seconds",
)  # fmt: skip
"""What workers count of spread and local steps."""


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


def measured(
    served: Stack, counters: Sequence[str], kind: str, *options: str, within_s: float
) -> tuple[dict[str, Any], list[str]]:
    """Run ``baton bench KIND``. Returns its results, with the growth of ``counters``, and its
    problems. Raises CommandFailed, httpx.HTTPError."""
    before = served.counters(counters)
    document = baton_bench(kind, *options, url=served.url, within_s=within_s).document
    after = served.counters(counters)
    growth = {n: round((after[n] or 0.0) - (before[n] or 0.0), 3) for n in counters}
    return document["results"] | {"counters": growth}, [*document["problems"]]
