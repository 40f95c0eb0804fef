"""Conducts every measurement: finds the server, decides when to stop, and writes the result.

Exit status: 0 good; 1 something failed or a gate was missed; 2 nothing could be measured; 130
interrupted, with what was measured until then in the file.
"""

import resource
import shlex
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import typer

from bench import environment, result_file
from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.client import Client
from bench.harness.client.endpoint import Deadlines, Endpoint
from bench.harness.gpu.sampler import Sampler
from bench.harness.progress import Progress, shown
from bench.harness.run_control import INTERRUPTED, Patience, RunControl
from bench.harness.server_info import ServerInfo, ask_server
from telemetry.gpu_readings import Gpus, NoGpus
from telemetry.nvml import local_gpus

CANNOT_MEASURE, INTERRUPT_STATUS = 2, 130


class Finding(Protocol):
    """The findings of a measurement, also of one that was stopped half way."""

    def json(self) -> dict[str, Any]: ...

    def problems(self) -> list[str]:
        """Why the run is not good; empty if it is good."""
        ...

    def headline(self) -> dict[str, Any]:
        """The few figures for the last line of stdout."""
        ...


@dataclass(frozen=True)
class Session:
    """What a measurement gets. ``client`` sends nothing more once the run is stopped. ``aside`` is
    for requests that are not measured; it can still send then."""

    client: Client
    aside: Client
    server: ServerInfo
    control: RunControl
    progress: Progress


Measure = Callable[[Session], Awaitable[Finding]]


@dataclass(frozen=True)
class Conduct:
    """One run of one kind of measurement. ``settings`` goes into the result file as it is.
    ``records_gpus``: the readings of ``gpus()`` go into ``results["gpu"]``."""

    kind: str
    endpoint: Endpoint
    model: str | None
    deadlines: Deadlines
    patience: Patience
    settings: dict[str, Any]
    out: Path | None
    html: Path | None
    records_gpus: bool = False
    gpus: Callable[[], Gpus] = local_gpus

    def __call__(self, measure: Measure) -> None:
        """Measure and write the result. Always ends in typer.Exit."""
        import uvloop

        for path in filter(None, (self.out, self.html)):
            _check_writable(path)
        if self.html is not None:
            from bench.harness.html.charts import MatplotlibMissing, matplotlib

            try:
                matplotlib()
            except MatplotlibMissing as error:
                raise typer.BadParameter(str(error)) from None
        _allow_open_files()
        document, headline = uvloop.run(self._measure(measure))
        out = self.out and result_file.save(self.out, document)
        if out != self.out:
            typer.echo(f"{self.out} is kept: this run is not good, and is in {out}", err=True)
        if self.html is not None:
            from bench.harness.html.page import name_of, render

            result_file.place(self.html, document).write_text(
                render([(name_of(document), document)])
            )
        for problem in document["problems"]:
            typer.echo(f"problem: {problem}", err=True)
        if document["stopped"]:
            typer.echo(f"stopped: {document['stopped']}", err=True)
        typer.echo(result_file.one_line({**headline, "file": None if out is None else str(out)}))
        raise typer.Exit(_status(document))

    async def _measure(self, measure: Measure) -> tuple[dict[str, Any], dict[str, Any]]:
        server: dict[str, Any] = {"url": self.endpoint.url, "model": self.model}
        results: dict[str, Any] = {}
        headline: dict[str, Any] = {}
        problems: list[str] = []
        cannot: str | None = None
        gpus = self.gpus() if self.records_gpus else NoGpus("not recorded")
        with shown() as progress:
            async with (
                Client(self.endpoint, self.deadlines) as client,
                Client(self.endpoint, self.deadlines) as aside,
            ):
                control = RunControl(client, self.patience)
                with control.watching(), Sampler(gpus) as sampler:
                    try:
                        info = await ask_server(client, self.model)
                        server = info.json()
                        progress.say(f"{self.kind}: {info.model} at {info.url}")
                        if info.given_acceptance is not None:
                            progress.say(
                                "NOTE: the server accepts drafts with a given probability of "
                                f"{info.given_acceptance:g}, whatever its model chooses"
                            )
                        finding = await measure(Session(client, aside, info, control, progress))
                        results, problems = finding.json(), finding.problems()
                        headline = finding.headline()
                    except (CannotMeasure, ValueError, OSError) as error:
                        cannot = f"cannot measure: {error}"
        if sampler.infos and results:
            results["gpu"] = sampler.observed.json()
        stopped = cannot if cannot and control.stopped != INTERRUPTED else control.stopped
        document = result_file.document(
            self.kind,
            environment=environment.describe_command(_command()),
            server=server,
            settings=self.settings,
            results=results,
            stopped=stopped,
            problems=problems,
        )
        line = {"kind": self.kind, "ok": document["ok"], "complete": document["complete"]}
        if (given := server.get("given_draft_acceptance")) is not None:
            line["given_draft_acceptance"] = given
        if stopped is not None:
            line["stopped"] = stopped
        return document, line | headline


def _check_writable(path: Path) -> None:
    """Refuse a path that cannot be written now, and not after an hour of measuring. Ends in
    typer.BadParameter."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        existed = path.exists()
        with path.open("a"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}") from None


def _allow_open_files() -> None:
    """Raise the limit of open files as far as the user may. Every connection is an open file. A
    shell's limit is often 1,024, which an open loop against a slow server reaches in seconds."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _status(document: dict[str, Any]) -> int:
    if document["stopped"] == INTERRUPTED:
        return INTERRUPT_STATUS
    if not document["results"]:
        return CANNOT_MEASURE
    return 0 if document["ok"] else 1


def _command() -> str:
    return shlex.join(["baton", "bench", *environment.without_folders(sys.argv[2:])])
