"""Bodies with one to three odd values somewhere: each is refused, or answered by a body or a stream
that the official types accept."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.coordinator.answers import check_error
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.responses.sdk import parsed, parsed_stream
from tests.coordinator.responses.test_conversation import CALL, CODEX, RESULT, THOUGHT, TOOL

NUM_BODIES = 250
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 5.5, 1e300, 2**70, "", "x", "\x00", "é" * 50, "<think>", [], {},
    [None], [{}], {"type": "function"}, {"type": "json_schema", "name": "a", "schema": True},
    "resp_" + "0" * 32, "msg_" + "0" * 32 + "_0", "function", "message", "reasoning", "auto",
    "item_reference", "required", [{"type": "input_text", "text": "a"}], {"a": {"b": [1]}},
]  # fmt: skip
FULL: dict[str, Any] = {
    "input": [{"role": "user", "content": "?"}, THOUGHT, CALL, RESULT],
    "tools": [TOOL],
    "tool_choice": {
        "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}],
    },
    "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}},
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 3,
    "metadata": {"a": "b"},
    "truncation": "auto",
    "temperature": 1,
    "stream": False,
    "max_output_tokens": 50,
    "seed": 3,
    "stop": ["x"],
    "structured_outputs": None,
    "chat_template_kwargs": {"enable_thinking": True},
    "thinking_token_budget": 5,
}  # fmt: skip
PLAIN = {"input": "Hi", "stream": True, "tools": [TOOL], "metadata": {}, "store": True}


def mutated(body: Any, draw: random.Random) -> Any:
    body = copy.deepcopy(body)
    for _ in range(draw.randint(1, 3)):
        places = list(_places(body))
        if not places:
            break
        holder, key = draw.choice(places)
        match draw.choice(("replace", "replace", "replace", "remove", "repeat")):
            case "replace":
                holder[key] = copy.deepcopy(draw.choice(ODD))
            case "remove":
                del holder[key]
            case _ if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case _:
                holder[f"{key}x"] = 1
    return body


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each dict or list within, and a key or an index of it."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = value
    elif isinstance(value, list):
        keys = range(len(value))
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


@pytest.mark.parametrize("seed", range(4))
async def test_no_body_is_too_odd(says: Says, client_of: ClientOf, seed: int) -> None:
    draw = random.Random(seed)
    core = says("hm\n</think>\n\nok " * 3)
    script = core.script
    core.script = lambda spec: [*script(spec), *[script(spec)[-1]] * 200]  # where ignore_eos is set
    client = client_of(core)
    for _ in range(NUM_BODIES):
        body = mutated(draw.choice((CODEX, FULL, PLAIN)), draw)
        answer = await client.post("/v1/responses", json=body)
        if answer.status_code != 200:
            check_error(answer, 404 if answer.status_code == 404 else 400)
        elif answer.headers["content-type"].startswith("text/event-stream"):
            parsed_stream(answer.text)
        else:
            parsed(answer.content)
        core.streams.clear()
