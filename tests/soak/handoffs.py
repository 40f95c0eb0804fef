"""``python -m tests.soak.handoffs``: handoffs under load, aborts and kill -9, every byte hashed.

    python -m tests.soak.handoffs --handoffs 1000 --max-prompt 32768 --kills 6 \\
        --out bench/results/h200-handoff-soak.json -- --prefill 1 --decode 3 --load-format dummy …

starts ``baton up`` with what follows ``--`` and BATON_VERIFY_HANDOFF=1, so that both ends of every
handoff hash its pages and state and a difference, or no hash, fails the request. Streams with
prompts of random length (log-uniform) run until so many handoffs have landed and so many workers
were killed; some clients leave at a random token; at even intervals a prefill and a decode worker
are killed in turn, each when the one before is back. It passes when

- every request whose client stayed ended with as many tokens as it asked for (how many is compared,
  not which: prompts that are computed together are rounded otherwise than alone);
- the decode workers compared the digests of as many handoffs as landed, none differed, and nothing
  failed for any other reason (a prompt that a decode worker computed needs no handoff: they do so
  while no prefill worker is there);
- every killed worker was back within ``--back-s``, and all of it was done within ``--run-s``;
- at the end all pages and state slots are free, the books balance, and the stack exits with 0.

The first failure ends the run.
"""

import asyncio
import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.environment import describe
from bench.harness.options import named_values
from bench.stack import StackFailed, started
from tests.soak.handoff_load import Plan, Soak

LOG_MISMATCH = "the cache changed on its way"
LOG_COMPARED = re.compile(r" decode landed .* verified=True$", re.MULTILINE)
LOG_COMPUTED = " decode prefilled "
BRIEF = (
    "passed", "handoffs", "digests_compared", "digest_mismatches", "finished", "aborted",
    "failures", "seconds",
)  # fmt: skip


def soak(
    plan: Plan, arguments: list[str], settings: dict[str, str], start_s: float
) -> dict[str, Any]:
    """Run ``plan`` against a new stack; ``passed`` in the result says whether all was well."""
    # What is compared is told in the workers' lines about each request.
    verified: dict[str, Any] = {"verify_handoff": "1", "log_level": "debug", **settings}
    with started(*arguments, settings=verified, start_s=start_s) as stack:
        run = Soak(stack, plan)
        began = time.monotonic()
        left = asyncio.run(run.run())
        seconds = time.monotonic() - began
        exit_code = stack.stop()
        told = stack.text
    mismatches, compared = told.count(LOG_MISMATCH), len(LOG_COMPARED.findall(told))
    computed = told.count(LOG_COMPUTED)
    tally = run.tally
    passed = (
        tally.landed >= plan.handoffs and not tally.failures and left["clean"] and exit_code == 0
        and not mismatches and compared + computed >= tally.landed and len(run.kills) == plan.kills
        and all(kill["back_s"] is not None for kill in run.kills)
        and not any('state="failed"' in labels for labels in left["requests"])
    )  # fmt: skip
    return {
        "passed": passed, "seconds": round(seconds, 1), "handoffs": tally.landed,
        "digests_compared": compared, "digest_mismatches": mismatches,
        "prompts_of_decode_workers": computed,
        "finished": tally.finished, "aborted": tally.aborted, "refused": tally.refused,
        "failures": tally.failures[:20], "kills": run.kills,
        "prompt_tokens": tally.prompt_tokens, "exit_code": exit_code,
        "prompts_by_length": dict(sorted(tally.lengths.items(), key=lambda i: int(i[0][3:]))),
        **left,
    }  # fmt: skip


def main(
    arguments: Annotated[list[str] | None, typer.Argument(help="Of baton up.")] = None,
    handoffs: int = 1000,
    concurrency: Annotated[int, typer.Option(help="Streams open at a time.")] = 16,
    max_prompt: Annotated[int, typer.Option(help="Tokens.")] = 32_768,
    max_output: Annotated[int, typer.Option(help="Tokens.")] = 64,
    abort_share: Annotated[float, typer.Option(help="Of clients that leave early.")] = 0.2,
    kills: Annotated[int, typer.Option(help="kill -9, prefill and decode by turns.")] = 6,
    seed: int = 0,
    num_ids: Annotated[int, typer.Option(help="Prompts hold ids below this.")] = 1_000,
    setting: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, for BATON_NAME.")] = None,
    start_s: Annotated[float, typer.Option(help="Seconds it may take to start.")] = 300.0,
    back_s: Annotated[float, typer.Option(help="Seconds until a killed worker is back.")] = 120.0,
    run_s: Annotated[float, typer.Option(help="Seconds all of it may take.")] = 1800.0,
    out: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    plan = Plan(
        handoffs, concurrency, max_prompt, max_output, abort_share, kills, seed, num_ids,
        back_s, run_s,
    )  # fmt: skip
    settings = named_values("--setting", setting)
    try:
        found = soak(plan, arguments or [], settings, start_s)
    except StackFailed as error:
        raise SystemExit(f"error: {error}") from None
    result = {**describe(sys.argv[1:], "tests.soak.handoffs"), "plan": asdict(plan), **found}
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in BRIEF}))
    raise typer.Exit(0 if result["passed"] else 1)


if __name__ == "__main__":
    typer.run(main)
