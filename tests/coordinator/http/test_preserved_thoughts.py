"""Variables of the chat template in every API: the thoughts of earlier turns stay in the prompt."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.http.http_settings import HttpSettings
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.apps import make_app
from tests.coordinator.fake_core import FakeCore

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
THOUGHT = "six times seven"
CHAT = [
    {"role": "user", "content": "6 * 7?"},
    {"role": "assistant", "content": "42", "reasoning_content": THOUGHT},
    {"role": "user", "content": "And 6 * 8?"},
]
MESSAGES = [
    CHAT[0],
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": THOUGHT, "signature": ""},
        {"type": "text", "text": "42"},
    ]},
    CHAT[2],
]  # fmt: skip
ITEMS = [
    CHAT[0],
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
        {"type": "reasoning_text", "text": THOUGHT},
    ]},
    {"role": "assistant", "content": "42"},
    CHAT[2],
]  # fmt: skip
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 1},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1, "model": "tiny"},
    "/v1/responses": {"input": ITEMS, "max_output_tokens": 16, "store": False},
    "/tokenize": {"messages": CHAT},
}


@pytest.fixture
async def site() -> AsyncIterator[tuple[httpx.AsyncClient, FakeCore, Tokenizer]]:
    tokenizer = Tokenizer.load(TINY)
    core = FakeCore(lambda _: [tokenizer.info.eos_ids[0]])
    app = make_app(core, tokenizer, HttpSettings("tiny"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as client:
        yield client, core, tokenizer
    tokenizer.close()


@pytest.mark.parametrize("path", APIS)
async def test_thoughts_stay_if_the_template_is_told_to_preserve_them(
    path: str, site: tuple[httpx.AsyncClient, FakeCore, Tokenizer]
) -> None:
    client, core, tokenizer = site
    for preserve, expected in ((None, False), (False, False), (True, True)):
        variables = {"enable_thinking": True}
        variables |= {} if preserve is None else {"preserve_thinking": preserve}
        body = APIS[path] | {"chat_template_kwargs": variables}
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        tokens = answer.json().get("tokens") or core.streams[-1].spec.prompt_ids
        prompt = tokenizer.decode(tokens, skip_special_tokens=False)
        assert ("<think>\nsix times seven\n</think>\n\n42<|im_end|>" in prompt) is expected
        assert prompt.endswith("<|im_start|>assistant\n<think>\n")


def test_a_preserved_thought_makes_the_end_of_an_answer_a_prefix() -> None:
    """As users of Qwen3.6 set it: the next prompt begins with this one and its answer."""
    tokenizer = Tokenizer.load(TINY)
    assert tokenizer.dialect.tool_call_parser == "qwen3_coder"
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 5}}}
    talk: list[dict[str, Any]] = [CHAT[0]]
    for answer, text in (
        ({"content": "42"}, "\n</think>\n\n42<|im_end|>"),
        (
            {"content": "", "tool_calls": [call]},
            "\n</think>\n\n<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n"
            "</function>\n</tool_call><|im_end|>",
        ),
    ):
        after = [*talk, {"role": "assistant", "reasoning_content": THOUGHT, **answer}, CHAT[2]]
        for preserve in (True, False):
            variables = {"enable_thinking": True, "preserve_thinking": preserve}
            before = tokenizer.encode_chat(talk, variables=variables)
            kept = before + tokenizer.encode(THOUGHT + text, add_special_tokens=False)
            prompt = tokenizer.encode_chat(after, variables=variables)
            assert (prompt[: len(kept)] == kept) is preserve
            assert tokenizer.thought_of(prompt) is not None
        talk = after
    tokenizer.close()
