"""The first question to a server: is it there, and which model does it serve?"""

import json

from bench.client.client import Client
from bench.exits import CannotMeasure


async def served_model(client: Client, wanted: str | None = None) -> str:
    """``wanted`` if the server lists it, else the first it lists; raises CannotMeasure naming
    what came instead."""
    exchange = await client.get("/v1/models")
    url = client.endpoint.url
    if exchange.failure is not None:
        raise CannotMeasure(f"{url}: {exchange.failure.value}: {exchange.detail}")
    said = f"HTTP {exchange.status}: {exchange.body[:200].decode(errors='replace')}"
    if exchange.status != 200:
        raise CannotMeasure(f"{url}/v1/models: {said}")
    try:
        listed = [str(entry["id"]) for entry in json.loads(exchange.body)["data"]]
        first = listed[0]
    except (ValueError, KeyError, TypeError, IndexError):
        raise CannotMeasure(f"{url}/v1/models lists no model: {said}") from None
    if wanted is not None and wanted not in listed:
        raise CannotMeasure(f"{url} does not serve {wanted!r} but {listed}")
    return wanted or first
