"""``python -m bench.spread_step``: decode steps that several GPUs of a node compute together.

A process a GPU, each with the whole model, random weights and 1,024 tokens of context, as decode
workers have. First a model of four layers, then the same with drafts, then one of full size:

    bits    logits and states of spread steps against those of local ones, by the members' rows
    drafts  tokens, logits and states of steps that verify drafts against those of local ones, and
            of local ones behind two that not all members launch
    stall   a member that does not launch: how long the others' steps take, and whom they name
    time    ms a step, local and spread, by the sequences of all members together
    lend    the same of a group whose last member has no rows and lends its bandwidth
    parts   us a layer: the exchange alone, and with the experts
    profile us a step by kernel

Exit status 1 when bits differ or a case failed. A case that takes too long ends its model's
processes, and the next model goes on.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import result_file
from bench.environment import describe
from bench.spread_processes import DRAFT_MEMBER, MEMBER, MemberFailed, Members
from bench.step import FULL_SIZE

SMALL_LAYERS = 4
SMALL_BUCKETS, FULL_BUCKETS = (1, 8, 32, 64, 128, 256), (16, 32, 64, 128)
DRAFT_SLOTS = 16
LIMIT_S, SHARED_LIMIT_S = 0.5, 8.0
"""Of a step's waits. Members begin a case with some milliseconds between them; those that share a
GPU compute in turns."""
TARGET_MS = {2: {64: 10.3}, 4: {32: 5.1, 64: 6.4, 128: 7.5, 256: 9.4}}


class Bench:
    """The cases of one model. ``results`` is filled as they end; ``save`` is called after each."""

    def __init__(self, members: Members, save: Callable[[], None]) -> None:
        self._members, self._save = members, save
        self.results: dict[str, Any] = {}
        self.problems: list[str] = []
        self._round = 1
        self._generation = 0

    def start(self, model_dir: Path, buckets: Sequence[int], *, share_gpu: bool) -> None:
        """Load the model everywhere, capture, and form the group."""
        arguments = {
            "model_dir": str(model_dir), "max_rows": buckets[-1], "buckets": buckets,
            "limit_s": SHARED_LIMIT_S if share_gpu else LIMIT_S,
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
        local, spread = min(row["local_ms"]), min(row["spread_ms"])
        target = TARGET_MS.get(self._members.count, {}).get(total, float("nan"))
        self.results.setdefault("time", []).append(row)
        print(
            f"time   {total:4} sequences  local {local:7.3f} ms  spread {spread:7.3f} ms  "
            f"{local / spread:5.3f} x  target {target}",
            flush=True,
        )
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

    def parts(self, bucket: int) -> None:
        lives = [bucket] * self._members.count
        found = self._ask("parts", 60, bucket, lives, 200, repeats=20)
        row = {"bucket": bucket} | {
            name: max(each["us"][name] for each in found) for name in found[0]["us"]
        }
        self.results.setdefault("parts_us", []).append(row)
        print(f"parts  {row}  header {found[0]['header'][0]}")
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


def small(bench: Bench, count: int) -> None:
    """Whether the bits are right, with few layers."""
    rest = count - 2
    for bucket, lives in (
        (1, (1, 1)), (1, (1, 0)), (8, (3, 8)), (32, (32, 32)), (32, (0, 29)), (32, (17, 1)),
        (64, (64, 64)), (64, (50, 64)), (128, (128, 128)), (256, (256, 256)),
    ):  # fmt: skip
        bench.bits(bucket, [*lives, *[lives[0]] * rest])
    bench.stall(32)
    bench.bits(64, [64, 3, *[0] * rest])
    bench.lend(32)


def with_drafts(bench: Bench, count: int) -> None:
    """Whether the bits are right where drafts are verified."""
    rest = [0] * (count - 2)
    for lives in ((1, 2), (8, 3), (16, 16), (0, 5)):
        bench.drafts([*lives, *rest], [0, 3, 1, 2, 0, 3])
    bench.drafts_stall(5, [0, 3, 3, 3])
    bench.drafts([4, 9, *rest], [0, 3, 3])


def full(bench: Bench, count: int) -> None:
    """How fast a step of the full model is, and where its time goes."""
    for bucket in (32, 128):
        bench.bits(bucket, [bucket] * count)
    for total in (64, 32, 128, 256):
        if total // count in FULL_BUCKETS:
            bench.time(total // count, [total // count] * count)
    bench.lend(64)
    for bucket in (32, 128):
        bench.parts(bucket)
    for bucket in (32, 128):
        bench.profile(bucket)
    bench.bits(32, [1, 32, *[0] * (count - 2)])
    bench.time(64, [64, *[0] * (count - 1)])


def main(
    gpus: int = 2,
    models: Annotated[str, typer.Option(help="Of small, drafts and full.")] = "small,drafts,full",
    share_gpu: Annotated[
        bool, typer.Option(help="All members on one GPU: bits, no times.")
    ] = False,
    logs: Annotated[Path, typer.Option(help="Folder of the members' output.")] = Path(
        "/tmp/spread"
    ),
    out: Annotated[Path, typer.Option(help="Result file.")] = Path(
        "bench/results/spread-step.json"
    ),
) -> None:
    results: dict[str, Any] = {}
    problems: list[str] = []
    environment = describe(sys.argv[1:], "bench.spread_step")

    def save() -> None:
        result_file.write(
            out,
            result_file.document(
                "spread-step",
                environment=environment,
                server={},
                settings={"gpus": gpus, "share_gpu": share_gpu, "context": 1024},
                results=results,
                problems=problems,
            ),
        )

    cases = {
        "small": (small, SMALL_BUCKETS, SMALL_LAYERS, MEMBER),
        "drafts": (with_drafts, (DRAFT_SLOTS,), SMALL_LAYERS, DRAFT_MEMBER),
        "full": (full, FULL_BUCKETS, None, MEMBER),
    }
    for name in models.split(","):
        run, buckets, num_layers, command = cases[name]
        began = time.perf_counter()
        with (
            tempfile.TemporaryDirectory() as folder,
            Members(gpus, logs / name, command) as members,
        ):
            bench = Bench(members, save)
            results[name], bench.problems = bench.results, problems
            try:
                bench.start(model_folder(Path(folder), num_layers), buckets, share_gpu=share_gpu)
                print(f"{name}: ready after {time.perf_counter() - began:.1f} s", flush=True)
                run(bench, gpus)
            except MemberFailed as error:
                problems.append(f"{name}: {error}")
                print(f"{name}: {error}", flush=True)
        save()
    for problem in problems:
        print("problem:", problem[:1500])
    raise typer.Exit(bool(problems))


def model_folder(folder: Path, num_layers: int | None) -> Path:
    """The full-size model, or its first layers."""
    if num_layers is None:
        return FULL_SIZE
    config = json.loads((FULL_SIZE / "config.json").read_text())
    text = config["text_config"]
    text["num_hidden_layers"] = num_layers
    text["layer_types"] = text["layer_types"][:num_layers]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    typer.run(main)
