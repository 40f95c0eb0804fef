"""Open-loop runs and sweeps: what was attained at which rate."""

from typing import Any

from bench.html.elements import cards, figure, figures, section, table
from bench.html.svg import Axis, Line, chart
from bench.html.terms import terms

_SPREADS = ("ttft_ms", "itl_ms", "tpot_ms", "tbt_ms", "e2e_ms", "sent_late_ms")
_SHARES = ("mean", "p50", "p90", "p95", "p99", "max")


def load(found: dict[str, Any]) -> str:
    run, slo = found["results"]["run"], found["settings"]["slo"]
    targets = f"TTFT {slo['ttft_ms']:g} ms, TPOT {slo['tpot_ms']:g} ms"
    first = cards(
        [
            ("requests a second, planned", run["rate"]),
            (f"% of requests within {targets}", 100 * run["attained"]),
            ("requests a second within the targets", run["good_requests_per_s"]),
            ("failed", run["failed"]),
            ("requests that the client sent more than 10 ms late", run["client_was_late"]),
        ]
    )
    rows = [[key, *[(run.get(key) or {}).get(share) for share in _SHARES]] for key in _SPREADS]
    return section(
        "Load", first, table(["", *_SHARES], rows), terms(("TTFT", "ITL", "TPOT", "TBT"))
    )


def sweep(found: dict[str, Any]) -> str:
    trials, slo = found["results"]["trials"], found["settings"]["slo"]
    first = cards(
        [
            (f"goodput at {share}, requests/s", bounds["requests_per_s"])
            for share, bounds in found["results"]["goodput"].items()
        ]
    )
    attained = [Line("attained", [(t["rate"], 100 * t["attained"]) for t in trials])]
    ends = [trials[0]["rate"], trials[-1]["rate"]] if trials else []
    attained += [Line(f"{share} %", [(at, share) for at in ends], quiet=True) for share in (90, 99)]
    x = Axis("requests a second", "log", [trial["rate"] for trial in trials])
    drawn = [figure("Requests within both targets", chart(attained, x, Axis("%", top=100)))]
    for name, key, target in (("TTFT", "ttft_ms", "ttft_ms"), ("TPOT", "tpot_ms", "tpot_ms")):
        lines = [
            Line(share, [(t["rate"], (t.get(key) or {}).get(share)) for t in trials])
            for share in ("p50", "p90", "p99")
        ]
        lines.append(Line("target", [(at, slo[target]) for at in ends], quiet=True))
        drawn.append(figure(name, chart(lines, x, Axis("ms"))))
    columns = ("rate", "planned", "failed", "attained", "good_requests_per_s", "client_was_late")
    rows = [[trial.get(column) for column in columns] for trial in trials]
    return section("Goodput", first, figures(*drawn), terms(("TTFT", "TPOT"))) + section(
        "Trials", table([column.replace("_", " ") for column in columns], rows)
    )
