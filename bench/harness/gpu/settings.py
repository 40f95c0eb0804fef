"""Settings of the GPU benchmark, and the server that it starts if none is given."""

import random
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Option

from bench.dummy_checkpoint import make_folder
from bench.environment import ROOT
from bench.harness.client.asking import Ask, completion
from bench.harness.conduct import CANNOT_MEASURE
from bench.harness.options import Settings, int_list
from bench.stack import StackFailed, running

_BUNDLED = ROOT / "models" / "tiny"
_SERVED = ("checkpoint", "load_format", "up_args", "start_s")
_ABOVE_0 = ("hold_s", "request_limit_s", "input_words", "output_len", "period_s", "least_gain")

# Words that every tokenizer has; drawn at random, so that no prefix cache is hit.
_WORDS = (
    *("river", "stone", "window", "garden", "letter", "bridge", "winter", "market"),
    *("candle", "silver", "forest", "engine", "mirror", "harbor", "basket", "thunder"),
    *("pocket", "meadow", "ladder", "copper", "feather", "island", "velvet", "anchor"),
)


@dataclass(frozen=True)
class GpuSettings(Settings):
    """A ramp from ``start`` to at most ``most`` requests at once, then ``hold_s`` seconds at the
    concurrency that it finds. ``levels``, if any, are tried instead of the ramp.

    Each request has about ``input_words`` tokens, and exactly ``output_len`` in its answer. A step
    of the ramp sends ``rounds`` requests per place within ``step_limit_s``; the first is not
    counted.
    """

    kind = "gpu"
    checkpoint: Annotated[
        Path,
        Option(
            help="What the started server serves; of a dummy, config.json is enough. The bundled "
            "tiny model."
        ),
    ] = _BUNDLED
    load_format: Annotated[
        Literal["auto", "dummy"], Option(help="For the started server; dummy: random weights.")
    ] = "dummy"
    up_args: Annotated[
        str, Option(help='More for the started server, as "--prefill 1 --decode 3".')
    ] = ""
    start_s: Annotated[float, Option(help="Seconds the started server may take.")] = 600.0
    hold_s: Annotated[float, Option(help="Seconds of full load.")] = 300.0
    start: Annotated[int, Option(help="Requests at once to begin with.")] = 4
    most: Annotated[int, Option(help="Requests at once at most.")] = 2_048
    levels: Annotated[
        tuple[int, ...], Option(help='As "10,100,1000": try these instead of doubling.'), int_list
    ] = ()
    least_gain: float = 0.05
    rounds: Annotated[int, Option(help="Requests per place in a step; 2 is shortest.")] = 3
    step_limit_s: Annotated[float, Option(help="Seconds of one step at most.")] = 180.0
    request_limit_s: float = 300.0
    input_words: Annotated[int, Option(help="Words in; about as many tokens.")] = 128
    output_len: Annotated[int, Option(help="Tokens out.")] = 256
    period_s: Annotated[float, Option(help="Seconds between two readings.")] = 1.0
    seed: Annotated[int, Option(help="Of the prompts.")] = 0

    def __post_init__(self) -> None:
        for name in _ABOVE_0:  # a hold may be infinite: until it is stopped
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if self.rounds < 2:
            raise ValueError(f"rounds: {self.rounds} is below 2, and the first is not counted")
        if not 1 <= self.start <= self.most:
            raise ValueError(f"start: {self.start} is not between 1 and most, {self.most}")
        if any(a >= b for a, b in pairwise((0, *self.levels))):
            raise ValueError(f"levels: {self.levels} do not increase from 1 or more")

    def ask(self, model: str, draw: random.Random) -> Ask:
        """The next request. It is not streamed, so that the client has little to do."""
        prompt = " ".join(draw.choices(_WORDS, k=self.input_words))
        return completion(
            model, prompt, stream=False, max_tokens=self.output_len, ignore_eos=True,
            temperature=1.0,
        )  # fmt: skip

    def json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _SERVED}


@contextmanager
def served(settings: GpuSettings, url: str | None) -> Iterator[str]:
    """The URL of the server at ``url``, or of one started here. Ends in typer.Exit if it fails."""
    if url is not None:
        yield url
        return
    arguments = ["--load-format", settings.load_format, *shlex.split(settings.up_args)]
    try:
        with (
            _complete(settings) as folder,
            running(folder, *arguments, device="auto", start_s=settings.start_s) as stack,
        ):
            yield stack.url
    except StackFailed as error:
        typer.echo(f"cannot measure: {error}", err=True)
        raise typer.Exit(CANNOT_MEASURE) from None


@contextmanager
def _complete(settings: GpuSettings) -> Iterator[Path]:
    """The checkpoint; for random weights, one without a tokenizer gets a made-up one."""
    folder = settings.checkpoint
    if settings.load_format != "dummy" or (folder / "tokenizer.json").is_file():
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        whole = Path(made) / folder.resolve().name
        make_folder(folder, whole)
        yield whole
