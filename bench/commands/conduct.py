"""Around every measurement: who is the server, when to stop, and the result, however it ended.

Exit status: 0 good; 1 something failed or a gate was missed; 2 nothing could be measured; 130
interrupted, with what was measured until then in the file.
"""

import shlex
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import typer

from bench import environment, result_file
from bench.client.client import Client
from bench.client.endpoint import Deadlines, Endpoint
from bench.client.open_files import allow_many
from bench.gpu.drawn import drawn
from bench.gpu.sampler import Sampler
from bench.progress import Progress, shown
from bench.run_control import INTERRUPTED, Patience, RunControl
from bench.server_info import ServerInfo, ServerUnfit, ask_server
from bench.workload.random_prompts import PromptsFailed
from bench.workload.tokens import TokenizerMissing
from telemetry.gpu_readings import Gpus, NoGpus

CANNOT_MEASURE = 2


def nobodys_gpus() -> Gpus:
    """For what says nothing about GPUs, and for servers on other machines."""
    return NoGpus("not recorded")


INTERRUPT_STATUS = 130
CannotMeasure = (ServerUnfit, TokenizerMissing, PromptsFailed, ValueError, OSError)


class Finding(Protocol):
    """What a measurement found, also after it was stopped half way."""

    def json(self) -> dict[str, Any]: ...

    def problems(self) -> list[str]:
        """What it must not be called good with; empty: nothing."""
        ...

    def headline(self) -> dict[str, Any]:
        """The few figures for the last line of stdout."""
        ...


@dataclass(frozen=True)
class Session:
    """All that a measurement is given. ``client`` sends nothing more once the run is stopped;
    ``aside`` is for what is not measured, and still can."""

    client: Client
    aside: Client
    server: ServerInfo
    control: RunControl
    progress: Progress


Measure = Callable[[Session], Awaitable[Finding]]


@dataclass(frozen=True)
class Conduct:
    """One run of one kind of measurement; ``settings`` goes into the file as it is."""

    kind: str
    endpoint: Endpoint
    model: str | None
    deadlines: Deadlines
    patience: Patience
    settings: dict[str, Any]
    out: Path | None
    html: Path | None
    gpus: Callable[[], Gpus] = nobodys_gpus
    """Whose health is recorded while it measures, into ``results["gpu"]``."""

    def __call__(self, measure: Measure) -> None:
        """Always ends in typer.Exit."""
        import uvloop

        for path in filter(None, (self.out, self.html)):
            _check_writable(path)
        allow_many()
        document, headline = uvloop.run(self._measure(measure))
        if self.out is not None:
            result_file.write(self.out, document)
        if self.html is not None:
            from bench.html.page import render

            self.html.write_text(render([document]))
        for problem in document["problems"]:
            typer.echo(f"problem: {problem}", err=True)
        if document["stopped"]:
            typer.echo(f"stopped: {document['stopped']}", err=True)
        typer.echo(result_file.one_line(headline))
        raise typer.Exit(_status(document))

    async def _measure(self, measure: Measure) -> tuple[dict[str, Any], dict[str, Any]]:
        server: dict[str, Any] = {"url": self.endpoint.url, "model": self.model}
        results: dict[str, Any] = {}
        headline: dict[str, Any] = {}
        problems: list[str] = []
        cannot: str | None = None
        with shown() as progress:
            async with (
                Client(self.endpoint, self.deadlines) as client,
                Client(self.endpoint, self.deadlines) as aside,
            ):
                control = RunControl(client, self.patience)
                with control.watching(), Sampler(self.gpus()) as sampler:
                    try:
                        info = await ask_server(client, self.model)
                        server = info.json()
                        progress.say(f"{self.kind}: {info.model} at {info.url}")
                        finding = await measure(Session(client, aside, info, control, progress))
                        results, problems = finding.json(), finding.problems()
                        headline = finding.headline()
                    except CannotMeasure as error:
                        cannot = f"cannot measure: {error}"
        if sampler.infos and results:
            results["gpu"] = drawn(sampler.infos, sampler.readings)
        stopped = control.stopped or cannot
        document = result_file.document(
            self.kind,
            environment=environment.describe_command(_command()),
            server=server,
            settings=self.settings,
            results=results,
            stopped=stopped,
            problems=problems,
        )
        told = {"kind": self.kind, "ok": document["ok"], "complete": document["complete"]}
        if stopped is not None:
            told["stopped"] = stopped
        return document, {**told, **headline, "file": None if self.out is None else str(self.out)}


def _check_writable(path: Path) -> None:
    """Now, and not after an hour of measuring; ends in typer.BadParameter."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}") from None


def _status(document: dict[str, Any]) -> int:
    if document["stopped"] == INTERRUPTED:
        return INTERRUPT_STATUS
    if not document["results"]:
        return CANNOT_MEASURE
    return 0 if document["ok"] else 1


def _command() -> str:
    return shlex.join(["baton", "bench", *environment.without_folders(sys.argv[2:])])
