"""All checks against one server, one after the other."""

import asyncio
import time
from collections.abc import Callable, Sequence

from bench.conformance.chat import CHAT_CHECKS
from bench.conformance.check import Check, NotOffered, Result, Verdict, Violation
from bench.conformance.completions import COMPLETION_CHECKS
from bench.conformance.crowd import CROWD
from bench.conformance.errors import ERRORS
from bench.conformance.sdk import SDK
from bench.conformance.server import Server, Unanswered
from bench.conformance.service import SERVICE
from bench.conformance.stream import STREAM

SUITES = {
    "service": SERVICE,
    "chat": CHAT_CHECKS,
    "stream": STREAM,
    "completions": COMPLETION_CHECKS,
    "errors": ERRORS,
    "crowd": CROWD,
    "openai": SDK,
}


async def run(
    server: Server,
    *,
    suites: Sequence[str] = tuple(SUITES),
    limit_s: float = 120.0,
    told: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """``told`` hears each result as it comes. A check that is not done within ``limit_s`` has
    failed."""
    results = []
    for name in suites:
        for check in SUITES[name].checks:
            results.append(await _run_one(server, name, check, limit_s))
            told(results[-1])
    return results


async def _run_one(server: Server, suite: str, check: Check, limit_s: float) -> Result:
    begin = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            verdict, detail = Verdict.PASS, await check.run(server)
    except Violation as error:
        verdict, detail = Verdict.FAIL, str(error)
    except NotOffered as error:
        verdict, detail = Verdict.NOT_OFFERED, str(error)
    except Unanswered as error:
        verdict, detail = Verdict.FAIL, f"no answer: {error}"
    except TimeoutError:
        verdict, detail = Verdict.FAIL, f"not done within {limit_s:.0f} s"
    except Exception as error:
        # Whatever a server sends, the other checks are run; what it was must not be lost.
        verdict, detail = Verdict.FAIL, f"unexpected answer: {error!r}"
    return Result(suite, check, verdict, detail, time.monotonic() - begin)
