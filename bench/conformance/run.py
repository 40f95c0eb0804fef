"""All checks against one server, one after the other, within a time limit."""

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
    check_limit_s: float = 120.0,
    limit_s: float = 900.0,
    told: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """``told`` hears each result as it comes. A check that is not done within its limit has
    failed; one whose turn does not come within ``limit_s`` has failed too, and says so."""
    ends_at = time.monotonic() + limit_s
    results = []
    for name in suites:
        for check in SUITES[name].checks:
            left_s = min(check_limit_s, ends_at - time.monotonic())
            result = await _run_one(server, check, left_s, limit_s)
            results.append(result)
            told(result)
    return results


async def _run_one(server: Server, check: Check, left_s: float, limit_s: float) -> Result:
    begin = time.monotonic()
    if left_s <= 0:
        return Result(check, Verdict.FAIL, f"not reached within {limit_s:.0f} s", 0.0)
    try:
        async with asyncio.timeout(left_s):
            verdict, detail = Verdict.PASS, await check.run(server)
    except Violation as error:
        verdict, detail = Verdict.FAIL, str(error)
    except NotOffered as error:
        verdict, detail = Verdict.NOT_OFFERED, str(error)
    except Unanswered as error:
        verdict, detail = Verdict.FAIL, f"no answer: {error}"
    except TimeoutError:
        verdict, detail = Verdict.FAIL, f"not done within {left_s:.0f} s"
    except Exception as error:
        # Whatever a server sends, the other checks are run; what it was must not be lost.
        verdict, detail = Verdict.FAIL, f"unexpected answer: {error!r}"
    return Result(check, verdict, detail, time.monotonic() - begin)
