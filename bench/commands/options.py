"""The options that every command against a server has, and what they resolve to."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.client.endpoint import Deadlines, Endpoint, endpoint
from bench.run_control import Patience

Url = Annotated[
    str,
    typer.Option(envvar="BATON_URL", help="http[s]://HOST:PORT[/prefix][/v1]."),
]
Model = Annotated[str | None, typer.Option(help="Its name; the first served.")]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="BATON_API_KEY", help="Sent as bearer token."),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="https without checking who."),
]
TokenizerFolder = Annotated[
    Path | None,
    typer.Option(help="Folder with tokenizer.json; the server's own model if it lies here."),
]
VocabSize = Annotated[
    int | None,
    typer.Option(
        help="Without a tokenizer here: use the server's /tokenize, drawing ids below this."
    ),
]
ConnectS = Annotated[float, typer.Option(help="Seconds to a connection.")]
FirstByteS = Annotated[float, typer.Option(help="Seconds to the first byte.")]
StallS = Annotated[float, typer.Option(help="Seconds of silence within a response.")]
RequestS = Annotated[float, typer.Option(help="Seconds for a whole request.")]
GiveUpAfter = Annotated[int, typer.Option(help="Failures in a row that end the run.")]
TimeLimitS = Annotated[float, typer.Option(help="Seconds for the whole run.")]
Exact = Annotated[
    bool | None, typer.Option(help="Another length is a failure; default: with --ignore-eos.")
]
ExtraBody = Annotated[str, typer.Option(help="JSON object added to every request.")]
Out = Annotated[Path | None, typer.Option(help="Where the result (JSON) goes.")]
Html = Annotated[Path | None, typer.Option(help="Where a report goes.")]


def resolve_endpoint(url: str, api_key: str | None, insecure: bool) -> Endpoint:
    return endpoint(url, api_key=api_key, verify_tls=not insecure)


def resolve_limits(
    connect_s: float,
    first_byte_s: float,
    stall_s: float,
    request_s: float,
    give_up_after: int,
    time_limit_s: float,
) -> tuple[Deadlines, Patience]:
    """Raises ValueError naming the setting."""
    return (
        Deadlines(connect_s, first_byte_s, stall_s, request_s),
        Patience(give_up_after, time_limit_s),
    )


def json_object(name: str, text: str) -> dict[str, Any]:
    """Raises ValueError naming the setting."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name}: {text!r} is no JSON object")
    return found
