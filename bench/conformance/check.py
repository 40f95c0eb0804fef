"""What a check is, and what may come of it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from bench.conformance.server import Server


class Need(StrEnum):
    """Only a required check decides the exit status."""

    REQUIRED = "required"
    RECOMMENDED = "recommended"


class Source(StrEnum):
    """Who asks for it."""

    OPENAI = "OpenAI's API reference"
    CLIENTS = "real clients"  # found by running them; docs/benchmarking-checks.md names each
    SSE = "the server-sent events standard"
    OPERATORS = "load balancers and operators"


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_OFFERED = "not offered"


class Violation(Exception):
    """The server does otherwise than the check asks; the message shows what came."""


class NotOffered(Exception):
    """The server says that it does not do this; the message shows how."""


@dataclass(frozen=True)
class Check:
    """``run`` returns a remark for the table, usually "", or raises Violation or NotOffered."""

    name: str
    need: Need
    source: Source
    run: Callable[[Server], Awaitable[str]]


@dataclass(frozen=True)
class Result:
    suite: str
    check: Check
    verdict: Verdict
    detail: str
    seconds: float

    @property
    def decides_failure(self) -> bool:
        """A required thing that is not offered is missing all the same."""
        return self.check.need is Need.REQUIRED and self.verdict is not Verdict.PASS


class Suite:
    """A group of checks, filled by its decorator in the order in which they are written."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def check(
        self, name: str, need: Need, source: Source
    ) -> Callable[[Callable[[Server], Awaitable[str]]], Callable[[Server], Awaitable[str]]]:
        def add(run: Callable[[Server], Awaitable[str]]) -> Callable[[Server], Awaitable[str]]:
            self.checks.append(Check(name, need, source, run))
            return run

        return add


def require(condition: bool, message: str) -> None:
    """Raises Violation unless ``condition``."""
    if not condition:
        raise Violation(message)
