"""The API key that our own clients send: from the environment, as a command line is no place."""

from collections.abc import Mapping

import typer

API_KEY = "BATON_API_KEY"


def key_header(environ: Mapping[str, str]) -> dict[str, str]:
    """The header that carries the key; none without one. Raises typer.BadParameter, not showing it,
    for a key that no header can carry."""
    key = environ.get(API_KEY, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise typer.BadParameter(f"{API_KEY} has characters that no header can carry")
    return {"Authorization": f"Bearer {key}"} if key else {}


def key_refused(url: str, headers: Mapping[str, str]) -> str:
    """What a 401 to a request with ``headers`` means, and what to do about it."""
    if headers:
        return f"{url} does not know the key in {API_KEY}; set it to one of the service's API keys"
    return f"{url} wants a key; set {API_KEY} to one of the service's API keys"
