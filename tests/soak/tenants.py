"""The API keys of the soak's clients, and agents: conversations of several turns with tools."""

import random
from typing import Any

import httpx

from tests.soak.cases import Case
from tests.soak.load import Seen

_KEYS = {"batch": ":::1", "chat": ":::4", "first": ":::2:1"}
"""The name of each key, and its weight and priority as the setting has them."""
NUM_AGENTS = 6
NUM_TURNS = 3
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a word up.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "maxLength": 8}},
                "required": ["word"],
                "additionalProperties": False,
            },
        },
    }
]


def setting() -> str:
    """BATON_API_KEYS."""
    return "\n".join(f"{name}:{_key(name)}{limits}" for name, limits in _KEYS.items())


def headers(draw: random.Random | None = None) -> dict[str, str]:
    """The header of a key that was drawn, or of one of them."""
    name = "chat" if draw is None else draw.choice([*_KEYS])
    return {"Authorization": f"Bearer {_key(name)}"}


async def converse(http: httpx.AsyncClient, seen: list[Seen], draw: random.Random) -> None:
    """One conversation. Every answer must be whole; what it says depends on the model. The first
    answer of a conversation must call the tool."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"look up w{draw.random():.3f}"}]
    authorization = headers(draw)
    for turn in range(NUM_TURNS):
        one = Seen(Case("agent", {}), stream=False)
        seen.append(one)
        body = {
            "messages": messages, "tools": TOOLS, "max_completion_tokens": 64, "seed": turn,
            "tool_choice": "required" if turn == 0 else "auto",
        }  # fmt: skip
        answer = await http.post(
            "/v1/chat/completions",
            json=body,
            headers={**authorization, "X-Request-Id": one.http_id},
        )
        if answer.status_code != 200:
            one.outcome, one.detail = "failed", f"{answer.status_code} {answer.text[:100]}"
            return
        one.outcome = "finished"
        (choice,) = answer.json()["choices"]
        calls = choice["message"].get("tool_calls") or []
        if turn == 0 and not calls and choice["finish_reason"] != "length":
            one.outcome, one.detail = "failed", f"no call: {choice}"
        messages.append({"role": "assistant", "content": choice["message"].get("content") or "-"})
        messages.append({"role": "user", "content": f"and {draw.randrange(100)}?"})


def _key(name: str) -> str:
    return f"sk-soak-{name}-0123456789abcdef"
