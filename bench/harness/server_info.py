"""What a server says about itself: its model and that model's folder, context length, version."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.client import Client
from bench.harness.workload.tokens import LocalTokens, ServerTokens, TokenizerMissing, Tokens


@dataclass(frozen=True)
class ServerInfo:
    """Facts about a server; ``root`` and ``max_model_len`` are None if it does not report them.
    ``given_acceptance``: the probability with which a Baton in a benchmark accepts drafts, instead
    of its model; None otherwise."""

    url: str
    model: str
    root: str | None
    max_model_len: int | None
    version: str | None
    given_acceptance: float | None = None

    def json(self) -> dict[str, Any]:
        """The facts for a result file, without folders of the server's machine."""
        return {
            "url": self.url,
            "model": self.model,
            "max_model_len": self.max_model_len,
            "version": self.version,
            "given_draft_acceptance": self.given_acceptance,
        }


async def ask_server(client: Client, model: str | None) -> ServerInfo:
    """Ask a server about itself and ``model``, None: the first that it lists. Raises
    CannotMeasure."""
    listed = await _json(client, "/v1/models")
    if isinstance(listed, str) and model is None:
        raise CannotMeasure(
            f"{client.endpoint.url}/v1/models: {listed}; is it up, and --url or BATON_URL right? "
            "else give model"
        )
    entries = listed.get("data") if isinstance(listed, dict) else []
    entries = [e for e in entries or [] if isinstance(e, dict) and isinstance(e.get("id"), str)]
    if not entries and model is None:
        raise CannotMeasure(f"{client.endpoint.url}/v1/models lists no model; give model")
    if model is None:
        model = entries[0]["id"]
    entry: dict[str, Any] = next((e for e in entries if e["id"] == model), {})
    version = await _json(client, "/version")
    length = entry.get("max_model_len")
    return ServerInfo(
        client.endpoint.url,
        str(model),
        entry.get("root") if isinstance(entry.get("root"), str) else None,
        length if isinstance(length, int) else None,
        str(version.get("version")) if isinstance(version, dict) else None,
        _given_acceptance(await _json(client, "/status")),
    )


async def find_tokens(
    client: Client, server: ServerInfo, folder: Path | None, vocab_size: int | None
) -> Tokens:
    """The tokenizer to count with: that in ``folder``, else the model's own if its folder is on
    this machine, else the server's. Raises TokenizerMissing if there is none."""
    if folder is not None:
        return LocalTokens(folder)
    if server.root is not None and (Path(server.root) / "tokenizer.json").is_file():
        return LocalTokens(Path(server.root))
    if vocab_size is None:
        raise TokenizerMissing(
            f"tokenizer: none given, and the model's folder ({server.root}) is not on this "
            "machine; give tokenizer, or vocab_size to use the server's /tokenize"
        )
    tokens = ServerTokens(client, server.model, vocab_size)
    await tokens.decode(await tokens.encode("a"))
    return tokens


def _given_acceptance(status: dict[str, Any] | str) -> float | None:
    """The acceptance of drafts that workers were given, in Baton's /status; other servers may
    answer anything there."""
    workers = status.get("workers") if isinstance(status, dict) else None
    found = [
        each["given_acceptance"]
        for each in (workers if isinstance(workers, list) else [])
        if isinstance(each, dict) and isinstance(each.get("given_acceptance"), float | int)
    ]
    return float(found[0]) if found else None


async def _json(client: Client, path: str) -> dict[str, Any] | str:
    """The object at ``path``, or why there is none."""
    exchange = await client.get(path)
    if exchange.failure is not None:
        return f"{exchange.failure}: {exchange.detail}"
    if exchange.status != 200:
        return f"HTTP {exchange.status}"
    try:
        return msgspec.json.decode(exchange.body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        return f"no JSON object: {error}"
