"""``python -m tests.coordinator.api_table``: writes docs/api-table.md from the schemas of requests
and the routes of the app. A test compares the page with them."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
from fastapi import FastAPI

from coordinator.core.contract import Core
from coordinator.http.chat_schemas import StructuredOutputs
from coordinator.http.http_settings import HttpSettings
from coordinator.http.known_fields import IGNORED, WARNED, KnownFields
from coordinator.http.messages.requests import IGNORED as MESSAGES_IGNORED
from coordinator.http.messages.requests import MessagesRequest
from coordinator.http.request_fields import RequestBody, unsupported_fields
from coordinator.http.request_schemas import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    TokenizeRequest,
)
from coordinator.http.responses.request import ResponseRequest
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator import other_servers as others
from tests.coordinator.apps import make_app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api-table.md"
_HEAD = """\
# The API, beside vLLM's

The endpoints, and the fields that OpenAI, Anthropic, vLLM or Baton have ([what they mean](api.md)).
*Works*: Baton acts on it. *Refused*: a 400 that names the field, unless its value is empty (null,
false, `""`, `[]`, `{}`) or the one in brackets. *Ignored*: on purpose, for the reason in brackets.
*As chats*: as in `/v1/chat/completions`. Unknown fields are ignored. vLLM is its main branch of
2026; *before 0.12*: only older versions.

`python -m tests.coordinator.api_table` writes this page.
"""
_UNBOUNDED = 2**31 - 1
_EMPTY = 5  # harmless values that every unsupported field has
_BODIES: Mapping[str, tuple[type[RequestBody], frozenset[str], frozenset[str]]] = {
    "POST /v1/chat/completions": (ChatRequest, others.VLLM_CHAT, others.OPENAI_CHAT),
    "POST /v1/completions": (
        CompletionRequest, others.VLLM_COMPLETION, others.OPENAI_COMPLETION
    ),
    "POST /v1/responses": (ResponseRequest, others.VLLM_RESPONSES, others.OPENAI_RESPONSES),
    "POST /v1/messages": (MessagesRequest, others.VLLM_MESSAGES, others.ANTHROPIC_MESSAGES),
    "POST /tokenize": (TokenizeRequest, others.VLLM_TOKENIZE, frozenset()),
    "structured_outputs": (StructuredOutputs, others.VLLM_STRUCTURED, frozenset()),
}  # fmt: skip


def page(app: FastAPI) -> str:
    parts, of_chats = [_HEAD, _endpoints(app)], set[Field]()
    for title, (schema, vllm, original) in _BODIES.items():
        fields = list(_fields(schema, vllm, original))
        rows = [_row(field, field in of_chats) for field in fields]
        parts.append(f"## `{title}`\n\n{_table('fields', rows)}")
        of_chats = of_chats or set(fields)
    return "\n".join(parts)


class Field(NamedTuple):
    """A field of a request, and what Baton and vLLM do with it. ``detail``: its range, the values
    that pass though it is refused, or why it is ignored."""

    name: str
    baton: str
    detail: str
    vllm: str


def _row(field: Field, as_for_chats: bool) -> tuple[str, str, str]:
    if as_for_chats:
        return f"`{field.name}`", "as chats", "as chats"
    bracket = f" ({field.detail})" if field.detail else ""
    return f"`{field.name}`{bracket}", field.baton, field.vllm


def _table(heading: str, rows: Iterable[tuple[str, str, str]]) -> str:
    """A table with one row for all names that have the same answers of Baton and vLLM."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, baton, vllm in rows:
        names.setdefault((baton, vllm), []).append(name)
    lines = [
        f"| {' | '.join(each)} | {', '.join(names[each])} |" for each in sorted(names, reverse=True)
    ]
    return "\n".join([f"| Baton | vLLM | {heading} |", "|---|---|---|", *lines, ""])


def _fields(
    schema: type[RequestBody], vllm: frozenset[str], original: frozenset[str]
) -> Iterator[Field]:
    """All fields by name; ``original`` are those of the API that vLLM follows."""
    unsupported = unsupported_fields(schema)
    described = msgspec.json.schema(schema)["$defs"][schema.__name__]["properties"]
    before = others.VLLM_BEFORE if issubclass(schema, GenerationRequest) else frozenset()
    ignored = MESSAGES_IGNORED if schema is MessagesRequest else IGNORED
    known = set(schema.__struct_fields__) | (set(ignored) & (vllm | original | before))
    for name in sorted(known):
        if name in ignored and name not in schema.__struct_fields__:
            baton, detail = "ignored", ignored[name]
        elif name in WARNED and issubclass(schema, KnownFields):
            baton, detail = "ignored", f"with a warning: {WARNED[name]}"
        elif name in unsupported:
            passing = [_json(value) for value in unsupported[name][_EMPTY:]]
            baton, detail = "refused", " and ".join(passing)
        else:
            baton, detail = "works", _range(described[name])
        yield Field(name, baton, detail, _vllm(schema, name, vllm))


def _vllm(schema: type[RequestBody], name: str, fields: frozenset[str]) -> str:
    if name in fields:
        here = others.VLLM_NOT_ALWAYS.get(f"{schema.__name__}.{name}")
        return here or others.VLLM_NOT_ALWAYS.get(name, "works")
    return "before 0.12" if name in others.VLLM_BEFORE else "ignored"


def _range(described: Mapping[str, Any]) -> str:
    for option in described.get("anyOf", [described]):
        least, most = option.get("minimum"), option.get("maximum")
        if most is not None and most < _UNBOUNDED:
            return f"{least} to {most}"
    return ""


def _json(value: Any) -> str:
    return f"`{msgspec.json.encode(value).decode()}`"


def _endpoints(app: FastAPI) -> str:
    served = {
        (method, path) for path, methods in app.openapi()["paths"].items() for method in methods
    }
    paths = {path for _, path in served} | {"/ping", "/openapi.json"} | others.VLLM_PATHS
    known = {path: [m.upper() for m, p in sorted(served) if p == path] for path in paths}
    known |= {"/ping": ["GET", "POST"], "/openapi.json": ["GET"], "/invocations": ["POST"]}
    rows = (
        (f"`{path}`", ", ".join(known[path]) or "no", "yes" if path in others.VLLM_PATHS else "no")
        for path in sorted(paths)
    )
    return f"## Endpoints\n\n{_table('paths', rows)}"


def app_of(tokenizer: Tokenizer) -> FastAPI:
    """An app that is only looked at."""
    return make_app(cast(Core, None), tokenizer, HttpSettings("any"))


if __name__ == "__main__":
    tokenizer = Tokenizer.load(PAGE.parents[1] / "models" / "tiny")
    PAGE.write_text(page(app_of(tokenizer)))
    tokenizer.close()
