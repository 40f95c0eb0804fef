"""Settings that the requests of throughput and load have in common."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from typer import Option

from bench.harness.options import Settings, json_object


@dataclass(frozen=True, kw_only=True)
class RequestSettings(Settings):
    """``exact``: an answer of another length than the requested one has failed (None: if
    ``ignore_eos`` is sent). Raises ValueError naming the setting."""

    seed: Annotated[int | None, Option(help="Of the prompts; fresh if not given.")] = None
    warm_ups: Annotated[int, Option(help="Requests before each run, not counted.")] = 2
    prompt_as: Annotated[
        Literal["text", "ids"], Option(help="ids: exact lengths; completions only.")
    ] = "text"
    temperature: Annotated[float, Option(help="Of the random prompts.")] = 1.0
    ignore_eos: Annotated[bool, Option(help="Go on to exactly the asked length.")] = True
    return_token_ids: Annotated[
        bool, Option("--token-ids/--no-token-ids", help="Ask for token ids (an extension).")
    ] = True
    exact: Annotated[
        bool | None, Option(help="Another length is a failure; default: with --ignore-eos.")
    ] = None
    extra_body: Annotated[
        Mapping[str, Any], Option(help="JSON object added to every request."), json_object
    ] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seed is None:
            object.__setattr__(self, "seed", secrets.randbelow(2**32))
        self.require_at_least(0, "warm_ups", "temperature")

    def fields(self) -> dict[str, Any]:
        """Fields of every request, for ``asking.completion``."""
        ids = {"return_token_ids": True} if self.return_token_ids else {}
        fixed = {"temperature": self.temperature, "ignore_eos": self.ignore_eos}
        return {**fixed, "exact": self.exact, **ids, **self.extra_body}
