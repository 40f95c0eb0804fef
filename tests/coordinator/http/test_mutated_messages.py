"""Bodies of the Messages API with one to three odd values somewhere: each is refused, or answered
by a message or a stream that the official types accept."""

import random
from typing import Any

import pytest
from anthropic.types import Message

from tests.coordinator.anthropic_sdk import MESSAGES, error_of, events_of, message_of, strictly
from tests.coordinator.fake_core import ClientOf, Says
from tests.coordinator.http.test_chat_forms import CALL
from tests.coordinator.http.test_messages import ADD
from tests.coordinator.responses.test_mutated_bodies import mutated

NUM_BODIES = 100
FULL: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 300,
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "so", "signature": "x"},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 5}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1",
             "content": [{"type": "text", "text": "5"}]},
            {"type": "text", "text": "And?"},
        ]},
    ],
    "tools": [ADD | {"strict": True}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 5, "display": "omitted"},
    "output_config": {"effort": "low"},
    "stop_sequences": ["x"],
    "temperature": 1,
    "stream": False,
}  # fmt: skip
FORM: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 300,
    "messages": [{"role": "user", "content": "Hi"}],
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "stream": True,
}


@pytest.mark.parametrize("seed", range(2))
async def test_no_body_is_too_odd(says: Says, client_of: ClientOf, seed: int) -> None:
    draw = random.Random(seed)
    core = says(f"hm\n</think>\n\nok\n\n{CALL}")
    script = core.script
    core.script = lambda spec: [*script(spec), *[script(spec)[-1]] * 200]
    client = client_of(core)
    for _ in range(NUM_BODIES):
        body = mutated(draw.choice((FULL, FORM)), draw)
        counted = await client.post(f"{MESSAGES}/count_tokens", json=body)
        assert counted.status_code in (200, 400, 404), counted.text
        answer = await client.post(MESSAGES, json=body)
        if answer.status_code != 200:
            assert answer.status_code in (400, 404), answer.text
            error_of(answer.content)
        elif answer.headers["content-type"].startswith("text/event-stream"):
            message_of(events_of(answer.text))
        else:
            strictly(Message, answer.content)
        core.streams.clear()
