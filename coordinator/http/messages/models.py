"""The list of models in Anthropic's form, for requests with the header ``anthropic-version``."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from coordinator.http.response_schemas import Body, Model

_HEADER = "anthropic-version"


class AnthropicModel(Body, kw_only=True):
    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    max_tokens: int


class AnthropicModelList(Body, kw_only=True):
    data: list[AnthropicModel]
    first_id: str
    last_id: str
    has_more: Literal[False] = False


def asks_for_anthropic(headers: Mapping[str, str]) -> bool:
    """True if a client of Anthropic's API asks."""
    return _HEADER in headers


def anthropic_model(model: Model) -> AnthropicModel:
    created_at = datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return AnthropicModel(
        id=model.id, display_name=model.id, created_at=created_at,
        max_input_tokens=model.max_model_len, max_tokens=model.max_model_len,
    )  # fmt: skip


def anthropic_models(model: Model) -> AnthropicModelList:
    """The list of one model."""
    return AnthropicModelList(data=[anthropic_model(model)], first_id=model.id, last_id=model.id)
