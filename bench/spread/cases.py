"""The cases of ``python -m bench.spread_step``: what its processes are told, and what they find."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.processes import Members

LIMIT_S = 8.0
"""Limit of a step's waits. Members begin a case some milliseconds apart, but some machines stand
still for seconds, and members that share a GPU compute in turns."""
TARGET_MS = {2: {64: 10.3}, 4: {32: 5.1, 64: 6.4, 128: 7.5, 256: 9.4}}
"""Targets of spread steps without drafts, by members and by sequences of all members."""
LOAD_S, CASE_S = 300, 90
MODES = ("local", "spread")


class Bench:
    """The cases of one model. ``results`` is filled as they end; ``save`` is called after each.
    ``lives``: sequences of each member; ``num_drafts``: drafts of each sequence in a step."""

    def __init__(self, members: Members, save: Callable[[], object]) -> None:
        self._members, self._save = members, save
        self.results: dict[str, Any] = {}
        self.problems: list[str] = []
        self._generation = 0

    def start(
        self,
        model_dir: Path,
        buckets: Sequence[int],
        *,
        share_gpu: bool,
        max_drafts: int,
        context: int,
    ) -> None:
        """Load the model everywhere, and form the group."""
        arguments = {
            "model_dir": str(model_dir), "buckets": buckets, "max_drafts": max_drafts,
            "num_members": self._members.count, "context": context,
            "limit_s": LIMIT_S,
        }  # fmt: skip
        devices = [0 if share_gpu else i for i in range(self._members.count)]
        loaded = self._members.ask("load", LOAD_S, [{**arguments, "device": i} for i in devices])
        self._handles = [each["handle"] for each in loaded]
        self.results["load_s"] = [each["load_s"] for each in loaded]
        self._join()

    def bits(self, lives: Sequence[int], num_drafts: Sequence[int] = (0, 0, 0)) -> None:
        """Spread steps with so many drafts, one after another, against local ones."""
        step: dict[str, Any] = {"num_drafts": num_drafts}
        self._ask("truth", [step | {"live": live} for live in lives])
        step["most"] = max(lives)
        found = self._ask("bits", [step | {"live": live} for live in lives])
        wrong = [each for each in found if not (each["equal"] and each["finite"])]
        if wrong:
            self.problems.append(f"bits of {lives}, {num_drafts} drafts: {wrong}")
        row = {
            "lives": list(lives), "num_drafts": list(num_drafts), "equal": not wrong,
            "num_accepted": [each["num_accepted"] for each in found],
        }  # fmt: skip
        self._add("bits", row)
        print(f"bits   {row} {wrong or ''}", flush=True)
        self._save()

    def stall(self, live: int, num_drafts: Sequence[int] = (0, 0, 0)) -> None:
        """The last member does not launch; then the group is formed again."""
        count = self._members.count
        step = {"live": live, "num_drafts": num_drafts}
        self._ask("truth", step)
        found = self._ask("stall", [step | {"launches": i + 1 < count} for i in range(count)])[0]
        named = found["read"] == [[True, [count - 1]]] * 2
        row = {"ms": found["ms"], "named": named, "taken_back": found["equal"]}
        if not (named and found["equal"]):
            self.problems.append(f"stall: {row} {found}")
        self.results["stall"] = row
        print(f"stall  {row}", flush=True)
        self._join()
        self._save()

    def time(self, lives: Sequence[int], num_drafts: int = 0, steps: int = 32) -> None:
        """``waited_us``: of the last spread steps, by member, and by whom it waited for."""
        count, total = self._members.count, sum(lives)
        row: dict[str, Any] = {"total": total, "lives": list(lives), "num_drafts": num_drafts}
        step = {"num_drafts": num_drafts, "most": max(lives), "steps": steps}
        for mode in MODES * 2:
            found = self._ask("time", [step | {"mode": mode, "live": live} for live in lives])
            row.setdefault(f"{mode}_ms", []).append(max(each["ms"] for each in found))
        row["waited_us"] = [each["waited_us"] for each in found]
        row["exchange_ms"] = max(map(exchange_ms, row["waited_us"]))
        self._add("time", row)
        local, spread = min(row["local_ms"]), min(row["spread_ms"])
        target = TARGET_MS.get(count, {}).get(total) if not num_drafts else None
        print(
            f"time   local {local:7.3f} ms  spread {spread:7.3f} ms  {local / spread:5.3f} x  "
            f"waits {row['exchange_ms']:6.3f} ms, {row['exchange_ms'] / spread:4.0%}  "
            f"{total:4} sequences, {num_drafts} drafts  target {target or '-'}"
        )
        for member, waited in enumerate(row["waited_us"]):
            print(f"       member {member} waits, us a step, by member: {waited}", flush=True)
        self._save()

    def lend(self, live: int, steps: int = 16) -> None:
        """The last member has no sequences, and lends to the others."""
        last = self._members.count - 1
        self._join(num_lenders=1)
        step = {"live": live, "steps": steps}
        self._ask("truth", {"live": live, "num_drafts": [0] * steps})
        *found, lender = self._ask("lend", [step | {"lends": i == last} for i in range(last + 1)])
        row = {
            "live": live,
            "equal": all(each["equal"] for each in found),
            "ms": max(each["ms"] for each in found),
            "came": lender["came"],
        }
        if not row["equal"]:
            self.problems.append(f"lend: {row} {found}")
        self._add("lend", row)
        print(f"lend   {row}", flush=True)
        self._join()
        self._save()

    def _ask(
        self, do: str, arguments: dict[str, Any] | Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        return self._members.ask(do, CASE_S, arguments)

    def _add(self, name: str, row: dict[str, Any]) -> None:
        self.results.setdefault(name, []).append(row)

    def _join(self, num_lenders: int = 0) -> None:
        """Form the group again."""
        self._generation += 1
        group = {
            "generation": self._generation, "handles": self._handles, "num_lenders": num_lenders,
        }  # fmt: skip
        self._ask("join", [group | {"place": i} for i in range(self._members.count)])


def exchange_ms(waited_us: Mapping[str, list[float]]) -> float:
    """What a member waited in a step: for the rows of all at the same time, and for the result that
    came last."""
    return (max(waited_us["rows"]) + sum(waited_us["results"])) / 1e3
