"""``python -m bench.node``: a whole node measured by a list of other commands, each with a time
limit.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.node --setups split:2+6,split:1+7,colocated:8 --model /tmp/full \\
        --load-format dummy --device cuda --out-dir /tmp/node --prefix h200x8-

1. *doctor*: ``baton doctor``, with the self-test of every pair of GPUs.
2. For each set-up a stack: the stages of handoffs, short ones alone (*handoff*) and long ones
   (*handoff-long*); throughput at 1 to 64 at once (*levels*); the pace of running streams while
   long prompts arrive (*interference*); everything at once (*crowd*).
3. *soak*, of the first split set-up: handoffs with verified digests while workers are killed.
4. Some of it again with spread steps, and with drafts.

The result of a part is a file in ``--out-dir``: PREFIX + stack + part. A part that has a file is
not measured again, so the same command continues a run that ended early. A part that failed has
none, and the rest goes on.

Exit code: 0 all parts have their files; 1 not; 2 wrong arguments.
"""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from bench import stack
from bench.commands import PLAIN_SAMPLING, CommandFailed, run
from bench.environment import ROOT
from bench.setups import Setup

MODES = ("plain", "spread", "drafts")
LOAD = "deploy.cli bench throughput --url URL --tokenizer MODEL SAMPLING OPTIONS --out"
INTERFERENCE = (
    "deploy.cli bench interference --url URL --tokenizer MODEL --setup SETUP OPTIONS --out OUT"
)
STAGES = "bench.handoff_stages --redis-url REDIS --min-prompt LENGTH --out"
COMMANDS: Mapping[str, tuple[float, Sequence[str]]] = {
    "doctor": (240.0, ["deploy.cli doctor --device DEVICE --port 0"]),
    "handoff": (90.0, [f"{LOAD} SENT", f"{STAGES} OUT"]),
    "handoff-long": (90.0, [f"{LOAD} SENT", f"{STAGES} OUT"]),
    "levels": (300.0, [f"{LOAD} OUT"]),
    "interference": (160.0, [INTERFERENCE]),
    "crowd": (250.0, [f"{LOAD} OUT"]),
    "soak": (360.0, ["tests.soak.handoffs OPTIONS --setting dead_after=60 --out OUT -- UP"]),
}
"""By kind of part, in the order in which they run: the seconds that each command may take, and the
commands as arguments of ``python -m``. The last one writes OUT, or prints the result."""
KINDS = tuple(COMMANDS)
OF_MODE: Mapping[str, Collection[str]] = {
    "plain": KINDS[1:],
    "spread": ("levels", "crowd"),
    "drafts": ("handoff", "handoff-long", "levels"),
}
OPTIONS = {
    "full": {
        "handoff": "--levels 1 --requests 32 --input-len 1024 --output-len 128 --spot-checks 0",
        "handoff-long": "--levels 8 --requests 32 --input-len 8192 --output-len 32 --spot-checks 0",
        "levels": "--levels 1,2,4,8,16,32,64 --requests 64 --rounds 2",
        "crowd": "--levels 256,512 --requests 512 --rounds 1 --spot-checks 0",
        "soak": "--handoffs 300 --kills 4 --concurrency 16 --max-prompt 32768 --max-output 64",
    },
    "tiny": {
        "handoff": "--levels 1 --requests 8 --input-len 64 --output-len 16 --spot-checks 0",
        "handoff-long": "--levels 4 --requests 8 --input-len 512 --output-len 16 --spot-checks 0",
        "levels": "--levels 1,2,4 --requests 8 --rounds 2 --input-len 64 --output-len 32",
        "interference": "--num-streams 4 --stream-prompt 64 --stream-tokens 200 --num-arrivals 8 "
        "--arrival-prompt 512 --every-s 0.25",
        "crowd": "--levels 8 --requests 8 --rounds 1 --input-len 64 --output-len 32",
        "soak": "--handoffs 40 --kills 4 --concurrency 6 --max-prompt 512 --max-output 16",
    },
}
"""By ``--size``: the full-size model on GPUs, and the bundled one on two cores. What is not given
is the command's own default."""


@dataclass(frozen=True)
class Served:
    """A stack to start. Mode ``plain``: neither spread steps nor drafts."""

    setup: Setup
    mode: str = "plain"

    @property
    def name(self) -> str:
        name = self.setup.name.replace(":", "-").replace("+", "-")
        return name if self.mode == "plain" else f"{name}-{self.mode}"

    def arguments(self) -> list[str]:
        """Arguments for ``baton up``."""
        speculate = "auto" if self.mode == "drafts" else "off"
        return [*self.setup.arguments(), "--speculate", speculate]

    def settings(self) -> Mapping[str, object]:
        """As BATON_* variables."""
        return {"spread": "auto" if self.mode == "spread" else "off"}


@dataclass(frozen=True)
class Part:
    """One measurement."""

    kind: str
    served: Served

    @property
    def name(self) -> str:
        return self.kind if self.kind == "doctor" else f"{self.served.name}-{self.kind}"

    @property
    def file_name(self) -> str:
        return f"{self.name}.txt" if self.kind == "doctor" else f"{self.name}.json"

    @property
    def stack(self) -> Served | None:
        """The stack that it shares with other parts; None: it needs none, or starts its own."""
        return None if self.kind in ("doctor", "soak") else self.served

    @property
    def limit_s(self) -> float:
        """Seconds that each of its commands may take."""
        return COMMANDS[self.kind][0]


def wanted(
    setups: Sequence[Setup], modes: Collection[str], kinds: Collection[str]
) -> Iterator[Part]:
    """The parts of these kinds, in their order: each stack is started once."""
    if "doctor" in kinds:
        yield Part("doctor", Served(setups[0]))
    soaked = next((setup for setup in setups if setup.num_prefill), None)
    for mode in (each for each in MODES if each in modes):
        for setup in setups:
            if mode == "spread" and setup.num_decode < 2:
                continue
            for kind in (each for each in OF_MODE[mode] if each in kinds):
                if kind == "soak" and setup != soaked:
                    continue
                if kind.startswith("handoff") and not setup.num_prefill:
                    continue
                yield Part(kind, Served(setup, mode))


@dataclass(frozen=True)
class Node:
    """What all parts share. ``up``: arguments of ``baton up``; ``options``: by kind of part."""

    model: Path
    device: str
    up: Sequence[str]
    options: Mapping[str, str]

    def measure(self, part: Part, file: Path, running: stack.Stack | None) -> None:
        """Run a part's commands; ``file`` gets the result if all end well. Raises CommandFailed."""
        options = self.options.get(part.kind, "").split()
        words: dict[str, Sequence[str]] = {
            "DEVICE": [self.device], "MODEL": [str(self.model)], "SAMPLING": PLAIN_SAMPLING,
            "OPTIONS": options, "SETUP": [part.served.setup.name],
            "UP": [*self.up, *part.served.arguments()],
        }  # fmt: skip
        if running is not None:
            redis_url = stack.setting(running.pids()["coordinator"], "BATON_REDIS_URL")
            words |= {"URL": [running.url], "REDIS": [redis_url]}
        if part.kind.startswith("handoff"):
            words["LENGTH"] = [options[options.index("--input-len") + 1]]
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / file.name
            words |= {"OUT": [str(out)], "SENT": [str(out.with_name("sent.json"))]}
            for template in COMMANDS[part.kind][1]:
                command = [word for each in template.split() for word in words.get(each, [each])]
                ended = run(command, part.limit_s)
                if ended.exit_code:
                    raise CommandFailed(f"{command[0]} ended with {ended.exit_code}: {ended.said}")
            found = out.read_text() if out.exists() else ended.said
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(found)


def main(
    setups: Annotated[str, typer.Option(help="split:P+D or colocated:N, commas between.")],
    up: Annotated[list[str] | None, typer.Argument(help="For baton up, behind --.")] = None,
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = ROOT / "models" / "tiny",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    load_format: Annotated[str, typer.Option(help="auto, or dummy: random weights.")] = "auto",
    size: Annotated[str, typer.Option(help="full, or tiny: for the bundled model.")] = "full",
    modes: Annotated[str, typer.Option(help="Of plain, spread, drafts.")] = ",".join(MODES),
    parts: Annotated[str, typer.Option(help="Only these.")] = ",".join(KINDS),
    out_dir: Annotated[Path, typer.Option(help="Where the results go.")] = Path("node-results"),
    prefix: Annotated[str, typer.Option(help="What their names begin with.")] = "",
    plan_only: Annotated[bool, typer.Option("--plan", help="Show the plan, run nothing.")] = False,
) -> None:
    """Measure a node's set-ups, part by part."""
    try:
        pools = [Setup.parse(each) for each in setups.split(",")]
        plan = [*wanted(pools, _some(modes, MODES, "--modes"), _some(parts, KINDS, "--parts"))]
        (chosen,) = _some(size, tuple(OPTIONS), "--size")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    arguments = ["--model", str(model.absolute()), "--load-format", load_format]
    arguments += ["--device", device, *(up or ())]
    node = Node(model.absolute(), device, arguments, OPTIONS[chosen])
    files = {part: out_dir / f"{prefix}{part.file_name}" for part in plan}
    to_do = [part for part in plan if not files[part].exists()]
    for part in plan:
        state = "to do" if part in to_do else "done before"
        typer.echo(f"{part.name:>34}  at most {part.limit_s:4.0f} s  {state}", err=True)
    if not plan_only:
        raise typer.Exit(0 if run_all(node, to_do, files) else 1)


def run_all(node: Node, parts: Sequence[Part], files: Mapping[Part, Path]) -> bool:
    """Measure the parts, with one stack for those that share it; True if all went well."""
    all_well = True
    for served, sharing in groupby(parts, key=lambda part: part.stack):
        with ExitStack() as opened:
            running: stack.Stack | None = None
            try:
                if served is not None:
                    started = stack.started(
                        *node.up, *served.arguments(), settings=served.settings()
                    )
                    running = opened.enter_context(started)
                    opened.callback(running.stop)
            except stack.StackFailed as error:
                typer.echo(f"{served and served.name}: failed: {error}", err=True)
                all_well = False
                continue
            for part in sharing:
                try:
                    node.measure(part, files[part], running)
                    typer.echo(f"{part.name}: done", err=True)
                except (CommandFailed, KeyError) as error:  # KeyError: a service is gone
                    typer.echo(f"{part.name}: failed: {error}", err=True)
                    all_well = False
    return all_well


def _some(given: str, known: Sequence[str], option: str) -> list[str]:
    """Split ``given`` into names. Raises ValueError unless all are ``known``."""
    named = given.split(",")
    if unknown := sorted(set(named) - set(known)):
        raise ValueError(f"{option}: {unknown[0]!r} is none of {', '.join(known)}")
    return [each for each in known if each in named]


if __name__ == "__main__":
    typer.run(main)
