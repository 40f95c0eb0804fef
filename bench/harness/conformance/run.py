"""All checks against one server, one after the other."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Annotated, Any

from typer import Option

from bench.harness.conduct import Session
from bench.harness.conformance import (
    anthropic_messages,
    chat,
    completions,
    crowd,
    forms,
    reasoning,
    refusals,
    responses,
    sdk,
    stream,
    tools,
)
from bench.harness.conformance.check import Check, Verdict
from bench.harness.conformance.server import NotOffered, Server, Unanswered, Violation
from bench.harness.options import Settings, Target

SUITES: dict[str, Sequence[Check]] = {
    "service": refusals.SERVICE,
    "chat": chat.CHECKS,
    "stream": stream.CHECKS,
    "tools": tools.CHECKS,
    "forms": forms.CHECKS,
    "reasoning": reasoning.CHECKS,
    "completions": completions.CHECKS,
    "responses": responses.CHECKS,
    "messages": anthropic_messages.CHECKS,
    "errors": refusals.ERRORS,
    "crowd": crowd.CHECKS,
    "openai": sdk.CHECKS,
}
_WIDTH = 160  # where there is no terminal to fit into
_COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.NOT_OFFERED: "yellow"}


def _suites(name: str, text: str) -> tuple[str, ...]:
    chosen = tuple(filter(None, text.split(",")))
    if unknown := set(chosen) - SUITES.keys():
        raise ValueError(f"{name}: {sorted(unknown)} are not among {', '.join(SUITES)}")
    return chosen or tuple(SUITES)


@dataclass(frozen=True)
class ConformanceSettings(Settings):
    kind = "conformance"
    suites: Annotated[
        tuple[str, ...], Option(help="Groups of checks, with commas; all."), _suites
    ] = tuple(SUITES)
    check_s: Annotated[float, Option(help="Seconds for one check.")] = 120.0
    request_s: float = 60.0


@dataclass(frozen=True)
class Result:
    suite: str
    check: Check
    verdict: Verdict
    detail: str
    seconds: float

    @property
    def decides_failure(self) -> bool:
        """True for a required check that did not pass: a feature not offered is missing too."""
        return self.check.required and self.verdict is not Verdict.PASS

    def json(self) -> dict[str, Any]:
        need = "required" if self.check.required else "recommended"
        return {
            "suite": self.suite, "name": self.check.name, "need": need,
            "source": self.check.source, "verdict": self.verdict.value, "detail": self.detail,
            "seconds": self.seconds,
        }  # fmt: skip


async def conformance(settings: ConformanceSettings, target: Target, session: Session) -> "Report":
    """A table of pass, fail and not offered; only required checks decide.

    Exit status: 0, 1 when a required check did not pass, 2 when the server did not answer.
    """
    session.progress.begin("checks", sum(len(SUITES[name]) for name in settings.suites))
    report = Report(
        await run(
            Server(session.client, session.server.model, target.api_key),
            suites=settings.suites,
            limit_s=settings.check_s,
            on_result=lambda one: session.progress.step(one.decides_failure),
        )
    )
    report.print_table(sys.stdout)
    return report


async def run(
    server: Server,
    *,
    suites: Sequence[str] = tuple(SUITES),
    limit_s: float = 120.0,
    on_result: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Run the checks of ``suites``. ``on_result`` is called with each result. A check that is not
    done within ``limit_s`` has failed."""
    results = []
    for name in suites:
        for check in SUITES[name]:
            results.append(await _run_one(server, name, check, limit_s))
            on_result(results[-1])
    return results


async def _run_one(server: Server, suite: str, check: Check, limit_s: float) -> Result:
    begin = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            verdict, detail = Verdict.PASS, await check.run(server) or ""
    except Violation as error:
        verdict, detail = Verdict.FAIL, str(error)
    except NotOffered as error:
        verdict, detail = Verdict.NOT_OFFERED, str(error)
    except Unanswered as error:
        verdict, detail = Verdict.FAIL, f"no answer: {error}"
    except TimeoutError:
        verdict, detail = Verdict.FAIL, f"not done within {limit_s:.0f} s"
    except Exception as error:
        # Whatever a server sends, the other checks run, and the table shows what it sent.
        verdict, detail = Verdict.FAIL, f"unexpected answer: {error!r}"
    return Result(suite, check, verdict, detail, time.monotonic() - begin)


@dataclass(frozen=True)
class Report:
    results: Sequence[Result]

    def problems(self) -> list[str]:
        """The required checks that did not pass."""
        return [
            f"{one.suite}: {one.check.name}: {one.verdict.value}: {one.detail}"
            for one in self.results
            if one.decides_failure
        ]

    def headline(self) -> dict[str, Any]:
        counts = Counter(one.verdict for one in self.results)
        found = {verdict.value.replace(" ", "_"): counts[verdict] for verdict in Verdict}
        return {**found, "required_missed": len(self.problems())}

    def json(self) -> dict[str, Any]:
        return {**self.headline(), "checks": [one.json() for one in self.results]}

    def print_table(self, file: IO[str]) -> None:
        """Print a row for each check; failed checks with their whole detail."""
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for title in ("", "check", "need", "asked for by", ""):
            table.add_column(title, overflow="fold")
        for one in self.results:
            row = one.json()
            shown = one.detail if one.verdict is Verdict.FAIL else one.detail[:80]
            verdict = f"[{_COLOURS[one.verdict]}]{one.verdict.value}[/]"
            name = f"{one.suite}: {one.check.name}"
            table.add_row(verdict, name, row["need"], row["source"], escape(shown))
        width = None if file.isatty() else _WIDTH
        Console(file=file, highlight=False, width=width).print(table)
