"""Checks: what the server says about itself."""

from bench.conformance.check import Need, Source, Suite, require
from bench.conformance.reading import error_of, ok
from bench.conformance.server import Server

SERVICE = Suite()


@SERVICE.check("GET /health says alive", Need.RECOMMENDED, Source.OPERATORS)
async def health(server: Server) -> str:
    answer = await server.get("/health")
    if answer.status != 200:
        ok(answer)
    return ""


@SERVICE.check("GET /ready says that it takes work", Need.RECOMMENDED, Source.OPERATORS)
async def ready(server: Server) -> str:
    answer = await server.get("/ready")
    if answer.status != 200:
        ok(answer)
    return ""


@SERVICE.check("GET /v1/models lists the model", Need.REQUIRED, Source.OPENAI)
async def models(server: Server) -> str:
    value = ok(await server.get("/v1/models"))
    require(value.get("object") == "list", f"object is {value.get('object')!r}")
    entries = value.get("data")
    require(isinstance(entries, list) and bool(entries), f"data is {entries!r}")
    for entry in entries:
        missing = {"id", "object", "created", "owned_by"} - entry.keys()
        require(not missing, f"an entry lacks {sorted(missing)}: {entry!r}")
        require(entry["object"] == "model", f"object is {entry['object']!r}")
    require(server.model in [entry["id"] for entry in entries], f"no {server.model!r} in {entries}")
    return f"{len(entries)} listed"


@SERVICE.check("GET /v1/models/{id} gives one model", Need.RECOMMENDED, Source.OPENAI)
async def one_model(server: Server) -> str:
    value = ok(await server.get(f"/v1/models/{server.model}"))
    require(value.get("id") == server.model, f"id is {value.get('id')!r}")
    return ""


@SERVICE.check("GET /v1/models/{unknown} is a 404", Need.RECOMMENDED, Source.OPENAI)
async def no_such_model(server: Server) -> str:
    error_of(await server.get("/v1/models/no-such-model"), 404)
    return ""


@SERVICE.check("X-Request-Id comes back", Need.RECOMMENDED, Source.CLIENTS)
async def request_id(server: Server) -> str:
    sent = "conformance-7f3a.1"
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    answer = await server.post("/v1/chat/completions", body, {"X-Request-Id": sent})
    ok(answer)
    got = answer.headers.get("x-request-id")
    require(got == sent, f"sent {sent!r}, got {got!r}")
    return ""
