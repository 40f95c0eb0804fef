"""``baton bench correctness``: are the answers right? The exit status is the gate."""

import math
import os
import secrets
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.commands import options as o
from bench.commands.conduct import Conduct, Session

Suite = Literal["gsm8k", "bundled"]
Match = Literal["flexible", "strict"]


def correctness(
    url: o.Url = "http://127.0.0.1:8000",
    model: o.Model = None,
    api_key: o.ApiKey = None,
    insecure: o.Insecure = False,
    suite: Annotated[
        Suite, typer.Option(help="gsm8k: through lm-eval; bundled: the tiny model's own problems.")
    ] = "gsm8k",
    data: Annotated[
        Path | None, typer.Option(help="Problems (JSON lines); GSM8K from the hub if not given.")
    ] = None,
    num_problems: Annotated[int, typer.Option(help="Drawn from gsm8k; 0: all.")] = 200,
    seed: Annotated[int | None, typer.Option(help="Of the draw; fresh if not given.")] = None,
    concurrency: Annotated[int, typer.Option(help="Requests at once.")] = 8,
    max_tokens: Annotated[int, typer.Option(help="Tokens an answer may have.")] = 1024,
    gate: Annotated[
        float | None, typer.Option(help="Share that must be right; 0.875 of gsm8k, 0.9 of bundled.")
    ] = None,
    gated: Annotated[
        Match | None, typer.Option(help="The gate's match; flexible of gsm8k, strict of bundled.")
    ] = None,
    tries: Annotated[int, typer.Option(help="Calls of a failing request (gsm8k).")] = 3,
    request_s: o.RequestS = 300.0,
    time_limit_s: o.TimeLimitS = 2 * 3600.0,
    out: o.Out = Path("correctness.json"),
    html: o.Html = None,
) -> None:
    """Word problems at temperature 0 through /v1/chat/completions.

    Exit status: 0 the gate is met, 1 it is not, 2 nothing could be measured, 130 interrupted.
    """
    from bench.client.endpoint import Deadlines
    from bench.correctness.bundled import ask_bundled
    from bench.correctness.gsm8k import Gsm8kPlan, run_gsm8k
    from bench.correctness.outcome import BUNDLED_GATE, GSM8K_GATE, Outcome
    from bench.correctness.problems import BUNDLED, read
    from bench.run_control import Patience

    seed = secrets.randbelow(2**32) if seed is None else seed
    if gate is None:
        gate = GSM8K_GATE if suite == "gsm8k" else BUNDLED_GATE
    if gated is None:
        gated = "flexible" if suite == "gsm8k" else "strict"
    try:
        where = o.resolve_endpoint(url, api_key, insecure)
        deadlines = Deadlines(first_byte_s=request_s, stall_s=request_s, total_s=request_s)
        patience = Patience(time_limit_s=time_limit_s)
        plan = Gsm8kPlan(
            url=where.url,
            model="",
            seed=seed,
            data=data,
            num_problems=num_problems,
            concurrency=concurrency,
            max_tokens=max_tokens,
            tries=tries,
            request_limit_s=math.ceil(request_s),
            limit_s=time_limit_s,
            gate=gate,
            gated=gated,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    settings = {"suite": suite, **vars(plan), "data": data and data.name}

    async def work(session: Session) -> Outcome:
        if suite == "gsm8k":
            session.progress.say(f"{num_problems or 'all'} problems, seed {seed}")
            return await run_gsm8k(
                plan.of(session.server.model), os.environ, session.control.stopped_within, api_key
            )
        problems = read(data or BUNDLED)
        session.progress.begin("bundled problems", len(problems))
        return await ask_bundled(
            session.client,
            session.server.model,
            problems,
            concurrency=concurrency,
            max_tokens=max_tokens,
            gate=gate,
            gated=gated,
            told=session.progress.step,
        )

    Conduct("correctness", where, model, deadlines, patience, settings, out, html)(work)
