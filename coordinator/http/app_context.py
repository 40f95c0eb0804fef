"""What all routes share: the core, the tokenizer, the settings."""

import hashlib
import time
import uuid
from dataclasses import dataclass, field, replace
from functools import cached_property

from coordinator.core.contract import Core
from coordinator.http.cache_salt import salt_of
from coordinator.http.errors import ApiError, quote
from coordinator.http.http_settings import HttpSettings
from coordinator.http.response_names import ResponseNames
from coordinator.text.tokenizer import Tokenizer
from telemetry.metrics import Metrics
from telemetry.version import VERSION


@dataclass(frozen=True)
class AppContext:
    """The core, the tokenizer and the settings; one per app. ``isolated_key``: the name of a
    request's API key if only requests of one key share prefixes, else ""."""

    core: Core
    tokenizer: Tokenizer
    settings: HttpSettings
    metrics: Metrics
    names: ResponseNames = field(default_factory=ResponseNames)
    started_at: int = field(default_factory=lambda: int(time.time()))
    isolated_key: str = ""

    def of_key(self, name: str) -> "AppContext":
        """The context of a request with the API key ``name``; "" for none."""
        isolated = self.settings.prefix_cache_isolation == "key"
        return replace(self, isolated_key=name) if isolated else self

    def salt(self, cache_salt: str | None = None) -> str:
        """The salt of a request: only requests with the same salt share prefixes. The time of an
        answer tells a client whether another client with its salt sent a prompt that begins
        alike."""
        return salt_of(cache_salt, self.isolated_key)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the version of the server and with the model: answers with one seed are the
        same only while it is."""
        made_by = f"{VERSION} {self.tokenizer.info.root}"
        return f"fp_{hashlib.sha256(made_by.encode()).hexdigest()[:10]}"

    @property
    def max_model_len(self) -> int:
        """Limit of prompt and output tokens together: the model's or that of the live workers,
        whichever is lower."""
        longest = self.core.max_seq_len
        limit = self.tokenizer.info.max_position
        return limit if longest is None else min(limit, longest)

    def check_model(self, name: str | None) -> None:
        """Raises ApiError if ``name`` is not the served model. None means the served model."""
        if name is not None and name != self.settings.served_model_name:
            served = self.settings.served_model_name
            raise ApiError(
                404,
                f"The model {quote(name)} does not exist here; this server has {quote(served)}.",
                param="model",
                code="model_not_found",
            )


def new_id() -> str:
    """A request id that is unique, whatever ids the clients send."""
    return uuid.uuid4().hex
