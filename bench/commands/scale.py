"""``baton bench scale``: thousands of requests open at once, and every one to exactly one end."""

import os
from pathlib import Path
from typing import Annotated

import typer

from bench.commands import options as o
from bench.commands.conduct import Conduct, Session

_LEVELS = "10,100,400,1000,10000"


def scale(
    url: o.Url = "http://127.0.0.1:8000",
    model: o.Model = None,
    api_key: o.ApiKey = None,
    insecure: o.Insecure = False,
    redis_url: Annotated[
        str | None,
        typer.Option(envvar="BATON_REDIS_URL", help="The coordinator's Redis, to compare with."),
    ] = None,
    levels: Annotated[str, typer.Option(help="Requests open at once, level by level.")] = _LEVELS,
    input_len: Annotated[str, typer.Option(help="Tokens in, from-to.")] = "128-1024",
    output_len: Annotated[int, typer.Option(help="Tokens out.")] = 128,
    turnover: Annotated[
        float, typer.Option(help="Requests of a level, as a multiple of those open at once.")
    ] = 1.1,
    arrivals_per_s: Annotated[float, typer.Option(help="Pace of a level's beginning.")] = 2_000.0,
    settle_s: Annotated[float, typer.Option(help="Seconds for Redis to catch up.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    connect_s: o.ConnectS = 60.0,
    request_s: o.RequestS = 1_800.0,
    time_limit_s: o.TimeLimitS = 4 * 3600.0,
    out: o.Out = Path("scale.json"),
    html: o.Html = None,
) -> None:
    """Client, coordinator (its /metrics) and Redis must agree on how each request ended.

    Exit status: 0, 1 when a request was lost or failed or two accounts differ, 2 when nothing
    could be measured, 130 interrupted. Refused requests (503 with Retry-After) are no failure.
    """
    from bench.client.endpoint import Deadlines
    from bench.run_control import Patience
    from bench.scale.plan import ScalePlan, parse_levels, parse_range
    from bench.scale.redis_view import NoLedger, RedisLedger
    from bench.scale.report import ScaleReport, line
    from bench.scale.run import require_files, run_level
    from coordinator.record.redis_url import PASSWORD
    from transport.wire.secret_setting import secret_setting

    try:
        where = o.resolve_endpoint(url, api_key, insecure)
        password = secret_setting(os.environ, PASSWORD)
        plan = ScalePlan(
            levels=parse_levels(levels),
            input_len=parse_range(input_len),
            output_len=output_len,
            turnover=turnover,
            arrivals_per_s=arrivals_per_s,
            settle_s=settle_s,
            seed=seed,
        )
        deadlines = Deadlines(connect_s, first_byte_s=request_s, stall_s=request_s,
                              total_s=request_s)  # fmt: skip
        patience = Patience(time_limit_s=time_limit_s)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

    async def work(session: Session) -> ScaleReport:
        require_files(max(plan.levels))
        ledger = NoLedger() if redis_url is None else RedisLedger(redis_url, password)
        found = []
        for level in plan.levels:
            if session.control.stopped:
                break
            session.progress.begin(f"{level} at once", plan.num_requests(level))
            found.append(
                await run_level(
                    session.client, session.aside, session.server.model, plan, level, ledger,
                    told=lambda one: session.progress.step(failed=one.bad),
                )
            )  # fmt: skip
            session.progress.say(line(found[-1]))
        return ScaleReport(found)

    Conduct("scale", where, model, deadlines, patience, plan.settings(), out, html)(work)
