"""The cases of ``python -m bench.spread_step``: what its processes are told, and what they find."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.spread_floor import by_group, floors_us
from bench.spread_processes import Members
from engine.model.registry import read_config

CONTEXT = 1024
LIMIT_S, SHARED_LIMIT_S = 0.5, 8.0
"""Limits of a step's waits: on a GPU for each member, which begin a case some milliseconds apart,
and on one shared GPU, on which they compute in turns."""
TARGET_MS = {2: {64: 10.3}, 4: {32: 5.1, 64: 6.4, 128: 7.5, 256: 9.4}}


class Bench:
    """The cases of one model. ``results`` is filled as they end; ``save`` is called after each."""

    def __init__(self, members: Members, save: Callable[[], None]) -> None:
        self._members, self._save = members, save
        self.results: dict[str, Any] = {}
        self.problems: list[str] = []
        self._round = 1
        self._generation = 0

    def start(
        self, model_dir: Path, buckets: Sequence[int], *, share_gpu: bool, **more: Any
    ) -> None:
        """Load the model everywhere, capture, and form the group."""
        self._config = read_config(model_dir)
        arguments = {
            "model_dir": str(model_dir), "max_rows": buckets[-1], "buckets": buckets,
            "limit_s": SHARED_LIMIT_S if share_gpu else LIMIT_S, **more,
        }  # fmt: skip
        devices = [0 if share_gpu else i for i in range(self._members.count)]
        loaded = self._members.ask("load", 240, [{**arguments, "device": i} for i in devices])
        self._handles = [each["handle"] for each in loaded]
        self._with_lender = [*self._handles[:-1], loaded[-1]["lending"]]
        captured = self._members.ask("capture", 150, {"num_members": self._members.count})
        self.results["capture_s"] = [each["both_s"] for each in captured]
        self._join()

    def bits(self, bucket: int, lives: Sequence[int]) -> None:
        found = self._ask("bits", 60, bucket, lives, 3, steps=3)
        equal = all(each["equal"] for each in found)
        wrong = [each for each in found if not (each["equal"] and each["finite"])]
        if wrong:
            self.problems.append(f"bits of {lives} in {bucket}: {wrong}")
        if any(each["header"][0] for each in found):
            self._join()
        row = {"bucket": bucket, "lives": list(lives), "equal": equal}
        self.results.setdefault("bits", []).append(row)
        print(f"bits   bucket {bucket:4} rows {lives!s:14} {'equal' if equal else wrong}")
        self._save()

    def stall(self, bucket: int) -> None:
        """The last member does not launch; then the group is formed again, and computes."""
        count = self._members.count
        step = self._step(bucket, bucket)
        launches = [step | {"launches": i + 1 < count} for i in range(count)]
        found = self._members.ask("stall", 30, launches)[0]
        told = all(each["header"][0] for each in self._members.ask("header", 30, {}))
        named = found["read"] == [[True, [count - 1]]] * 2
        row = {"ms": found["ms"], "named": named, "told": told, "taken_back": found["taken_back"]}
        if not (named and told and found["taken_back"]):
            self.problems.append(f"stall: {row} {found}")
        self.results["stall"] = row
        print(f"stall  {row}")
        self._join()
        self._save()

    def drafts(self, lives: Sequence[int], num_drafts: Sequence[int]) -> None:
        """Steps with so many drafts, one after another."""
        step: dict[str, Any] = {"num_drafts": num_drafts}
        self._members.ask("drafts_truth", 90, [step | {"live": live} for live in lives])
        step["most"] = max(lives)
        found = self._members.ask("drafts_bits", 90, [step | {"live": live} for live in lives])
        wrong = [each for each in found if not (each["equal"] and each["finite"])]
        if wrong:
            self.problems.append(f"drafts of {lives}, {num_drafts}: {wrong}")
        row = {
            "lives": list(lives), "num_drafts": list(num_drafts), "equal": not wrong,
            "num_accepted": [each["num_accepted"] for each in found],
        }  # fmt: skip
        self.results.setdefault("drafts", []).append(row)
        print(f"drafts {row} {wrong or ''}", flush=True)
        self._save()

    def drafts_stall(self, live: int, num_drafts: Sequence[int]) -> None:
        """The last member does not launch; then the group is formed again."""
        count = self._members.count
        step = {"live": live, "num_drafts": num_drafts}
        self._members.ask("drafts_truth", 90, step)
        launches = [step | {"launches": i + 1 < count} for i in range(count)]
        found = self._members.ask("drafts_stall", 90, launches)[0]
        named = found["read"] == [[True, [count - 1]]] * 2
        row = {"ms": found["ms"], "named": named, "taken_back": found["equal"]}
        if not (named and found["equal"]):
            self.problems.append(f"drafts, stall: {row} {found}")
        self.results["drafts_stall"] = row
        print(f"drafts, stall: {row}", flush=True)
        self._join()
        self._save()

    def time(self, bucket: int, lives: Sequence[int], steps: int = 32) -> None:
        total = sum(lives)
        row: dict[str, Any] = {"total": total, "bucket": bucket, "lives": list(lives)}
        for mode in ("local", "spread", "local", "spread"):
            found = self._ask("time", 60, bucket, lives, steps + 8, mode=mode, steps=steps)
            row.setdefault(f"{mode}_ms", []).append(max(each["ms"] for each in found))
            if any(each["header"][0] for each in found):
                self.problems.append(f"time of {lives} {mode}: {found}")
                self._join()
        row["waited_us"] = [each["waited_us"] for each in found]
        target = TARGET_MS.get(self._members.count, {}).get(total, float("nan"))
        self._timed(row, f"{total:4} sequences  target {target}")

    def draft_time(self, live: int, num_drafts: int, steps: int = 16) -> None:
        """Every member has so many sequences, with so many drafts each."""
        lives = [live] * self._members.count
        row: dict[str, Any] = {"total": sum(lives), "lives": lives, "num_drafts": num_drafts}
        step = {"live": live, "num_drafts": num_drafts, "steps": steps}
        for mode in ("local", "spread", "local", "spread"):
            found = self._members.ask("drafts_time", 60, step | {"mode": mode})
            row.setdefault(f"{mode}_ms", []).append(max(each["ms"] for each in found))
        row["waited_us"] = [each["waited_us"] for each in found]
        self._timed(row, f"{sum(lives):4} sequences, {num_drafts} drafts")

    def _timed(self, row: dict[str, Any], what: str) -> None:
        """``waited_us`` of the last spread steps, by member, and by whom it waited for."""
        local, spread = min(row["local_ms"]), min(row["spread_ms"])
        row["exchange_ms"] = max(map(exchange_ms, row["waited_us"]))
        self.results.setdefault("time", []).append(row)
        print(
            f"time   local {local:7.3f} ms  spread {spread:7.3f} ms  {local / spread:5.3f} x  "
            f"waits {row['exchange_ms']:6.3f} ms, {row['exchange_ms'] / spread:4.0%}  {what}"
        )
        for member, waited in enumerate(row["waited_us"]):
            print(f"       member {member} waits, us a step, by member: {waited}", flush=True)
        self._save()

    def lend(self, bucket: int, steps: int = 16) -> None:
        """The last member lends to the others."""
        self._join_as("join_lender", self._with_lender)
        last = self._members.count - 1
        step = self._step(bucket, bucket) | {"steps": steps}
        found = self._members.ask(
            "lent", 60, [step | {"lends": i == last} for i in range(last + 1)]
        )
        row = {
            "bucket": bucket,
            "equal": all(each["equal"] for each in found[:last]),
            "ms": max(each["ms"] for each in found[:last]),
            "came": found[last]["came"],
        }
        if not row["equal"] or any(each["header"][0] for each in found[:last]):
            self.problems.append(f"lend: {row} {found}")
        self.results.setdefault("lend", []).append(row)
        print(f"lend   {row}")
        self._join()
        self._save()

    def profile(self, bucket: int) -> None:
        lives = [bucket] * self._members.count
        for mode in ("local", "spread"):
            found = self._ask("profile", 60, bucket, lives, 8, mode=mode, steps=6)
            self.results.setdefault("profile_us", {})[f"{mode} {bucket}"] = [
                each["us_and_calls"] for each in found
            ]
            print(f"profile of {mode}, bucket {bucket}: us a step, calls")
            for name, (us, calls) in [*found[0]["us_and_calls"].items()][:12]:
                print(f"   {us:9} {calls:6}  {name}")
            sharing = self._members.count if mode == "spread" else 1
            floors = floors_us(self._config, bucket, bucket * sharing, sharing, CONTEXT)
            groups = by_group(found[0]["us_and_calls"], floors)
            self.results.setdefault("floors_us", {})[f"{mode} {bucket}"] = {
                name: [group.us, group.floor_us] for name, group in groups.items()
            }
            for name, group in groups.items():
                print(f"   {group.us:9} us, {group.times_floor or '-':>5} x the floor  {name}")
        self._save()

    def _ask(
        self, do: str, limit_s: float, bucket: int, lives: Sequence[int], rounds: int, **also: Any
    ) -> list[dict[str, Any]]:
        step = [self._step(bucket, live) | also for live in lives]
        self._round += rounds
        return self._members.ask(do, limit_s, step)

    def _step(self, bucket: int, live: int) -> dict[str, Any]:
        return {"bucket": bucket, "live": live, "round_": self._round}

    def _join(self) -> None:
        self._join_as("join", self._handles)

    def _join_as(self, do: str, handles: Sequence[str]) -> None:
        self._generation += 1
        self._round = 1
        self._members.ask(
            do, 60,
            [
                {
                    "generation": self._generation,
                    "place": i,
                    "handles": handles,
                }
                for i in range(self._members.count)
            ],
        )  # fmt: skip


def exchange_ms(waited_us: Mapping[str, list[float]]) -> float:
    """What a member waited in a step: for the rows of all at the same time, and for the result that
    came last."""
    return (max(waited_us["rows"]) + sum(waited_us["results"])) / 1e3
