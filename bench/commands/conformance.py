"""``baton bench conformance``: does a server speak OpenAI's API as clients need it?"""

import sys
from typing import Annotated

import typer

from bench.commands import options as o
from bench.commands.conduct import Conduct, Session


def conformance(
    url: o.Url = "http://127.0.0.1:8000",
    model: o.Model = None,
    api_key: o.ApiKey = None,
    insecure: o.Insecure = False,
    suites: Annotated[str, typer.Option(help="Groups of checks, with commas; all.")] = "",
    request_s: o.RequestS = 60.0,
    check_s: Annotated[float, typer.Option(help="Seconds for one check.")] = 120.0,
    time_limit_s: o.TimeLimitS = 1_800.0,
    out: o.Out = None,
    html: o.Html = None,
) -> None:
    """A table of pass, fail and not offered; only required checks decide.

    Exit status: 0, 1 when a required check did not pass, 2 when the server did not answer.
    """
    from bench.client.endpoint import Deadlines
    from bench.conformance.report import Report
    from bench.conformance.run import SUITES, run
    from bench.conformance.server import Server
    from bench.run_control import Patience

    chosen = tuple(filter(None, suites.split(","))) or tuple(SUITES)
    try:
        if unknown := set(chosen) - SUITES.keys():
            raise ValueError(f"suites: {sorted(unknown)} are none of {', '.join(SUITES)}")
        where = o.resolve_endpoint(url, api_key, insecure)
        deadlines = Deadlines(first_byte_s=request_s, stall_s=request_s, total_s=request_s)
        patience = Patience(time_limit_s=time_limit_s)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

    async def work(session: Session) -> Report:
        num_checks = sum(len(SUITES[name].checks) for name in chosen)
        session.progress.begin("checks", num_checks)
        results = await run(
            Server(session.client, session.server.model, api_key),
            suites=chosen,
            limit_s=check_s,
            told=lambda one: session.progress.step(failed=one.decides_failure),
        )
        report = Report(results)
        report.print_table(sys.stdout)
        return report

    settings = {"suites": chosen, "check_s": check_s, "request_s": request_s}
    Conduct("conformance", where, model, deadlines, patience, settings, out, html)(work)
