"""A command's options are the fields of its settings, each declared once, with its help.

A field whose annotation has a ``typer.Option`` is an option. If a function follows the option, it
reads the value from text; it is called with the field's name and the text. Any other field gets
the limit of its name (``LIMIT_OF``), so that a result file records it.
"""

import inspect
import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, Field, asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

import typer

from bench.harness.client.endpoint import Deadlines, Endpoint, endpoint
from bench.harness.conduct import Conduct, Finding, Session
from bench.harness.run_control import Patience

T = TypeVar("T")
G = TypeVar("G", bound="Target")
S = TypeVar("S", bound="Settings")
LIMIT_OF = {"request_limit_s": "request_s", "request_s": "request_s", "limit_s": "time_limit_s"}
WAITS = {"first_byte_s": math.inf, "stall_s": math.inf, "request_s": 300.0}
"""Deadlines of a command that sets no others."""


class Settings:
    """Base of the settings of a command; ``kind``: the kind of its results."""

    kind: ClassVar[str]

    def json(self) -> dict[str, Any]:
        """The settings as the result file has them."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def require_above_0(self, *names: str) -> None:
        """Raise ValueError naming the first of these settings that is not above 0, or infinite.
        One that is None is right."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}: {value} is not above 0, or not finite")

    def require_at_least(self, least: float, *names: str) -> None:
        """Raise ValueError naming the first of these settings that is less, or infinite. One that
        is None is right."""
        for name in names:
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise ValueError(f"{name}: {value} is not at least {least:g}, or not finite")


@dataclass(frozen=True)
class Target:
    url: Annotated[
        str | None, typer.Option(envvar="BATON_URL", help="http[s]://HOST:PORT[/prefix][/v1].")
    ] = "http://127.0.0.1:8000"
    model: Annotated[str | None, typer.Option(help="Its name; the first served.")] = None
    api_key: Annotated[
        str | None, typer.Option(envvar="BATON_API_KEY", help="Sent as bearer token.")
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="https without checking the certificate.")
    ] = False

    def endpoint(self, url: str) -> Endpoint:
        """The server at ``url``. Raises ValueError naming the setting."""
        return endpoint(url, api_key=self.api_key, verify_tls=not self.insecure)


@dataclass(frozen=True)
class CountedTarget(Target):
    """A server whose tokens are counted."""

    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder with tokenizer.json; the server's own model if it lies here."),
    ] = None
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Without a tokenizer here: use the server's /tokenize, drawing ids below this."
        ),
    ] = None


@dataclass(frozen=True)
class Output:
    out: Annotated[Path | None, typer.Option(help="Where the result (JSON) goes.")] = None
    html: Annotated[Path | None, typer.Option(help="Where a report goes.")] = None


def command(
    settings: type[S],
    measure: Callable[[S, G, Session], Awaitable[Finding]],
    target_type: type[G],
    *,
    records_gpus: bool = False,
    serve: Callable[[S, str | None], AbstractContextManager[str]] | None = None,
    **defaults: Any,
) -> Callable[..., None]:
    """A function for typer with the options of the target, of ``settings``, of the deadlines and
    of the output. ``defaults`` replace the defaults of fields. ``serve`` starts a server if needed,
    and gives its URL for as long as it is entered."""
    parts = (target_type, settings, Deadlines, Patience, Output)
    defaults = WAITS | defaults

    def run(**values: Any) -> None:
        try:
            target, where = _made(target_type, values), _made(Output, values)
            deadlines, patience = _made(Deadlines, values), _made(Patience, values)
            chosen = _made(settings, values)
            if target.url is not None:
                target.endpoint(target.url)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        with serve(chosen, target.url) if serve else nullcontext(target.url or "") as url:
            there = target.endpoint(url)
            Conduct(
                chosen.kind, there, target.model, deadlines, patience, chosen.json(), where.out,
                where.html, records_gpus and there.is_local,
            )(partial(measure, chosen, target))  # fmt: skip

    options = [option for part in parts for option in _options(part, defaults)]
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__doc__ = measure.__doc__
    return run


def json_object(name: str, text: str) -> Mapping[str, Any]:
    """Read a JSON object. Raises ValueError naming the setting."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: {text!r} is no JSON object")
    return found


def named_values(name: str, given: Sequence[str] | None) -> dict[str, str]:
    """Read NAME=VALUE, each NAME once. Raises typer.BadParameter naming the setting."""
    found = dict(each.split("=", 1) for each in given or () if "=" in each)
    if len(found) != len(given or ()):
        raise typer.BadParameter(f"{name}: {given} are not NAME=VALUE, each NAME once")
    return found


def int_list(name: str, text: str) -> tuple[int, ...]:
    """Read numbers with commas between them. Raises ValueError naming the setting.

    >>> int_list("levels", "10,400")
    (10, 400)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name}: {text!r} are not numbers with commas between") from None


def _annotated(settings: type) -> Iterator[tuple[Field[Any], Any, tuple[Any, ...]]]:
    """Each field with its type and the extra items of its annotation."""
    hints = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        hint = hints[field.name]
        metadata = getattr(hint, "__metadata__", ())
        yield field, get_args(hint)[0] if metadata else hint, metadata


def _options(settings: type, defaults: Mapping[str, Any]) -> Iterator[inspect.Parameter]:
    for field, kind, metadata in _annotated(settings):
        if not metadata:
            continue
        option, *parse = metadata
        default = None if parse or field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(field.name, default),
            annotation=Annotated[str | None if parse else kind, option],
        )


def _made(settings: type[T], values: Mapping[str, Any]) -> T:
    """Make ``settings`` from option values. Raises ValueError naming the setting."""
    given = {}
    for field, _, metadata in _annotated(settings):
        name = field.name if metadata else LIMIT_OF.get(field.name, "")
        if len(metadata) > 1 and values[name] is not None:
            given[name] = metadata[1](name, values[name])
        elif len(metadata) == 1 or (not metadata and name in values):
            given[field.name] = values[name]
    return settings(**given)
