"""``baton scale``: how many workers compute prompts, and how many decode."""

import os
from typing import Annotated

import httpx
import typer

from deploy.api_client import ApiClient, ApiError, Url
from deploy.ports import DEFAULT_URL

NOT_DONE = 1
_TIMEOUT = httpx.Timeout(5.0, read=60.0)


def scale(
    prefill: Annotated[int, typer.Option(help="Workers that compute prompts; 0: all do both.")],
    decode: Annotated[int, typer.Option(help="Workers that decode.")],
    url: Url = DEFAULT_URL,
) -> None:
    """Change the pools of a running server, whose workers take any role (baton up --pools manual).

    Exit code: 0 done, 1 refused, or some sequences have no room elsewhere yet.
    """
    try:
        with ApiClient(url, os.environ, timeout=_TIMEOUT) as api:
            answer = api.post("/v1/pools", {"prefill": prefill, "decode": decode})
            with api.parsing():
                found = answer.json()
                changed = [f"{name}: {roles}" for name, roles in sorted(found["changed"].items())]
                moved, left = int(found["num_moved"]), int(found["num_left"])
    except ApiError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(NOT_DONE) from error
    for line in changed:
        print(line)
    print(f"{prefill} prefill and {decode} decode workers; {moved} sequences moved")
    if left:
        typer.echo(f"{left} sequences are decoded by prefill workers until there is room", err=True)
        raise typer.Exit(NOT_DONE)
