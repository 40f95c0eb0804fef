"""``python -m bench.spread_table``: the table of spread steps that is shipped.

Local steps and those of two members are as ``python -m bench.spread_step --gpus 2 --table FILE``
measured them. Steps of more members are estimated, times measured over estimated of two:

    step = local step of the member's own rows
           - bytes of the experts that these rows choose
           + bytes of a member's share of the experts that the rows of all members choose
           + the exchanges between members
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from bench.predict.steps import EXPERT_S, EXPERTS, Local
from bench.predict.tables import Table
from decode.spread_table import LOCAL, SHIPPED, Curve, Experts, StepTime, between, document
from transport.wire.spread import MAX_ROWS

MEASURED = Path(__file__).parent / "results" / "h200x2-spread-table.json"
PAIR = 2
"""Members whose steps were measured."""
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
MEMBERS = (2, 3, 4, 6, 8)
MAX_DRAFTS = 3
BASIS = (
    "local steps and those of two members measured on two H200s; those of more members computed by "
    "the bytes of experts and the time of 80 exchanges, and corrected by what two members took"
)


EXCHANGES = 80
EXCHANGE_US: Mapping[int, Curve] = {
    2: ((1, 3.0), (16, 3.4), (32, 3.7)),
    3: ((1, 3.4), (8, 3.7), (16, 4.1), (32, 4.9)),
    4: ((1, 3.6), (4, 3.8), (8, 4.1), (16, 4.7), (32, 6.1)),
}
"""µs of one exchange over the rows of a member, by number of members. Measured between four H200s
with the LL protocol and plain kernels in one process; the raw output is not in this repository.
``exchange_us`` extrapolates."""


def exchange_us(members: int, rows: float) -> float:
    """µs of one exchange. Each member beyond four adds what four take more than three.

    >>> [round(exchange_us(members, 16), 1) for members in (3, 4, 8)]
    [4.1, 4.7, 7.1]
    """
    measured = min(members, 4)
    own = between(EXCHANGE_US[measured], rows)
    if members == measured:
        return own
    return own + (members - 4) * (own - between(EXCHANGE_US[3], rows))


def together_s(local: Local, rows: int, members: int) -> float:
    """Seconds of one step of members with so many sequences each."""
    tokens = rows * local.rows_a_sequence
    own = EXPERT_S * EXPERTS.distinct(tokens)
    share = EXPERT_S * EXPERTS.distinct(tokens * members) / members
    return local.of(rows) - own + share + EXCHANGES * exchange_us(members, tokens) / 1e6


def estimated(local: Local, drafts: int) -> list[StepTime]:
    """Estimated local and spread steps with ``drafts`` drafts."""
    tokens = 1 + drafts
    steps = [StepTime(LOCAL, rows, drafts, 1e3 * local.of(rows)) for rows in ROWS]
    for members in MEMBERS:
        for rows in ROWS:
            if rows * tokens <= MAX_ROWS:
                ms = 1e3 * together_s(local, rows, members)
                steps.append(StepTime(members, rows, drafts, ms))
    return steps


def corrected(estimates: Iterable[StepTime], measured: Iterable[StepTime]) -> list[StepTime]:
    """Measured steps as they are, and the estimates of others times measured over estimated: of
    local steps for local ones, of two members for more, with as many drafts or next fewer."""
    known = {step[:3]: step.ms for step in measured}
    found = {step[:3]: step.ms for step in estimates}
    ratios: dict[tuple[int, int], dict[int, float]] = {}
    for (sharing, rows, drafts), ms in known.items():
        if (sharing, rows, drafts) in found:
            of_rows = ratios.setdefault((sharing, drafts), {})
            of_rows[rows] = ms / found[sharing, rows, drafts]
    for (sharing, rows, drafts), ms in list(found.items()):
        like = min(sharing, PAIR)
        nearest = max(k for s, k in ratios if s == like and k <= drafts)
        curve = sorted(ratios[like, nearest].items())
        within = min(max(rows, curve[0][0]), curve[-1][0])
        found[sharing, rows, drafts] = ms * between(curve, within)
    return [StepTime(*key, ms) for key, ms in sorted({**found, **known}.items())]


def main(
    measured: Annotated[Path, typer.Option(help="Of bench.spread_step --table.")] = MEASURED,
    out: Annotated[Path, typer.Option(help="The table.")] = SHIPPED,
) -> None:
    table = Table.read()
    found, files = estimated(table.local, 0), [measured.name, *table.files]
    for drafts in range(1, MAX_DRAFTS + 1):
        with_drafts = table.with_drafts(drafts, 0.0)
        found += estimated(with_drafts.local, drafts)
        files += [name for name in with_drafts.files if name not in files]
    steps = [StepTime(*each) for each in json.loads(measured.read_text())["steps"]]
    experts = Experts(read_ms=1e3 * EXPERT_S)
    known = {"command": "python -m bench.spread_table", "from": files}
    more = {**known, "estimated": [each for each in MEMBERS if each > PAIR]}
    text = json.dumps(document(corrected(found, steps), "measured", BASIS, experts, **more))
    out.write_text(text.replace('"steps": [[', '"steps": [\n[').replace("], [", "],\n[") + "\n")


if __name__ == "__main__":
    typer.run(main)
