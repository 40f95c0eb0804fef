"""Apps over a core alone: without a record of requests, and without stored responses."""

import time
from collections.abc import Callable, Sequence

from fastapi import FastAPI

from coordinator.core.contract import Core, History, StoredResponses
from coordinator.http.api import create_app
from coordinator.http.bodies.parsers import BodyParsers
from coordinator.http.http_settings import HttpSettings
from coordinator.record.record import RequestRecord
from coordinator.record.stored_response import ConversationUnavailable, StoredResponse
from coordinator.text.tokenizer import Tokenizer
from telemetry.clock import SteadyClock
from telemetry.metrics import Metrics


def make_app(
    core: Core,
    tokenizer: Tokenizer,
    settings: HttpSettings,
    *,
    history: History | None = None,
    stored: StoredResponses | None = None,
    parsers: BodyParsers | None = None,
    now: Callable[[], float] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """As create_app, with what a test does not care for."""
    return create_app(
        core, tokenizer, settings, Metrics(settings.served_model_name), history or NoHistory(),
        stored or NoStoredResponses(), parsers or BodyParsers(tokenizer.folder),
        now=now or SteadyClock(), clock=clock,
    )  # fmt: skip


class NoHistory:
    """The history of a core that keeps no record."""

    async def get(self, request_id: str) -> RequestRecord | None:
        return None

    async def recent(self, most: int) -> list[RequestRecord]:
        return []


class NoStoredResponses:
    """Where no responses are kept."""

    async def keep(self, owner: str, response: StoredResponse) -> bool:
        return False

    async def conversation(self, owner: str, response_id: str) -> list[bytes]:
        raise ConversationUnavailable(response_id)

    async def bodies(self, owner: str, response_ids: Sequence[str]) -> list[bytes | None]:
        return [None for _ in response_ids]

    async def delete(self, owner: str, response_id: str) -> bool:
        return False
