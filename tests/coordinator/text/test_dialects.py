"""The dialect is chosen by what the chat template writes, and all that depends on it follows."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from coordinator.server import log_dialect
from coordinator.text.answer_parser import Divided, ThoughtDivider
from coordinator.text.chat_template import ChatTemplate
from coordinator.text.dialect import dialect_of
from coordinator.text.thoughts import Opener, ThoughtIds, ThoughtMeter
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.checkpoint_folder import PLAIN, TEMPLATE
from tests.coordinator.dialect_templates import QWEN3, dialect_folder
from tests.coordinator.text.test_qwen_parser import cut

QUESTION = {"role": "user", "content": "How many?"}
TALK = [QUESTION, {"role": "assistant", "content": "Four."}, {"role": "user", "content": "Sure?"}]


@pytest.mark.parametrize(
    ("name", "turns", "opener", "tools"),
    [
        ("qwen2.5", "chatml", Opener.NOBODY, "hermes"),
        ("qwen3", "chatml", Opener.MODEL, "hermes"),
        ("llama3", "llama3", Opener.NOBODY, "llama3_json"),
        ("gemma3", "gemma", Opener.NOBODY, None),
        ("other", "unknown", Opener.NOBODY, None),
    ],
)
def test_the_template_says_what_the_dialect_is(
    tokenizers: dict[str, Tokenizer], name: str, turns: str, opener: Opener, tools: str | None
) -> None:
    dialect = tokenizers[name].dialect
    found = dialect.turns.name, dialect.opener, dialect.tool_call_parser
    assert found == (turns, opener, tools)
    assert f"turns {turns}" in dialect.summary
    assert f"tool calls {tools or 'none'}" in dialect.summary
    assert bool(dialect.no_tools) is (tools is None)
    assert bool(dialect.problems) is (name == "other")


def test_the_bundled_model_has_the_dialect_of_qwen35() -> None:
    source = (Path(__file__).parents[3] / "models/tiny/chat_template.jinja").read_text()
    for template in (source, TEMPLATE):
        dialect = dialect_of(ChatTemplate(template, {}), {"<|im_start|>", *PLAIN})
        assert dialect.turns.name == "chatml"
        assert dialect.opener is Opener.PROMPT
        assert dialect.tool_call_parser == "qwen3_coder"
        assert (dialect.no_tools, dialect.problems) == ("", ())


def test_what_is_not_understood_is_said(tokenizers: dict[str, Tokenizer]) -> None:
    assert "none of the known formats (qwen3_coder, hermes, llama3_json)" in (
        tokenizers["other"].dialect.no_tools
    )
    assert "has no tools" in tokenizers["gemma3"].dialect.no_tools
    lacking = dialect_of(ChatTemplate(QWEN3, {}), {"<|im_start|>"})
    assert "need the token <tool_call>" in lacking.no_tools
    assert lacking.no_tools in lacking.problems
    assert "<think> or </think> is no token" in lacking.problems[0]
    assert lacking.opener is Opener.NOBODY
    calls = "{% if messages[-1].tool_calls %}{{ raise_exception('not so') }}{% endif %}"
    refusing = dialect_of(ChatTemplate(calls + "{{ tools }}", {}), ())
    assert refusing.no_tools == "the chat template does not render a tool call: not so"
    assert "no chat template" in dialect_of(None, ()).problems[0]
    with pytest.raises(ValueError, match="does not render a question: so it is"):
        dialect_of(ChatTemplate("{{ raise_exception('so it is') }}", {}), ())


def test_one_line_at_the_start_names_the_dialect(
    tokenizers: dict[str, Tokenizer], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for name in ("qwen3", "other"):
            log_dialect(tokenizers[name].dialect, Path(name))
    known, unknown = caplog.records
    assert (known.levelno, unknown.levelno) == (logging.INFO, logging.WARNING)
    assert known.getMessage() == (
        "chats of qwen3: turns chatml (begin with <|im_start|>), thoughts opened by the model (a "
        "prompt without thinking ends with </think>), tool calls hermes (written as "
        '<tool_call>{"name":"NAME","arguments":)'
    )
    assert "none of the known formats" in unknown.getMessage()


def test_tags_that_are_special_tokens_are_seen_by_the_parsers(tmp_path: Path) -> None:
    folder = dialect_folder(tmp_path, "qwen3")
    file = folder / "tokenizer.json"
    saved = json.loads(file.read_text())
    for token in saved["added_tokens"]:
        token["special"] = True
    file.write_text(json.dumps(saved))
    tokenizer = Tokenizer.load(folder)
    tags = {tokenizer.encode(tag)[0] for tag in PLAIN}
    (start,) = tokenizer.encode("<|im_start|>")
    assert len(tags) == 4
    assert tags.isdisjoint(tokenizer.special_ids)
    assert start in tokenizer.special_ids
    tokenizer.close()


@pytest.mark.parametrize("name", ["qwen2.5", "llama3", "gemma3"])
def test_boundaries_are_those_of_the_template_s_turns(
    tokenizers: dict[str, Tokenizer], name: str
) -> None:
    tokenizer = tokenizers[name]
    prompt = tokenizer.encode_chat(TALK)
    found = [tokenizer.decode(prompt[num:]) for num in tokenizer.boundaries.of(prompt)]
    questions = [text for text in found if "Four" not in text and "Sure?" in text]
    assert len(questions) == 1, "before the last question"
    after = [*TALK, {"role": "assistant", "content": "Yes."}, QUESTION]
    assert tokenizer.encode_chat(after)[: len(prompt)] == prompt, "the answer is behind the prompt"
    assert tokenizers["other"].boundaries.of(tokenizers["other"].encode_chat(TALK)) == ()


def test_a_tool_s_result_is_no_question(tokenizers: dict[str, Tokenizer]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    loop = [
        QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4"},
    ]
    for name, start in (("qwen3", "<|im_start|>"), ("llama3", "<|start_header_id|>")):
        tokenizer = tokenizers[name]
        prompt = tokenizer.encode_chat([*TALK[:2], *loop])
        texts = [
            tokenizer.decode(prompt[num:], skip_special_tokens=False)
            for num in tokenizer.boundaries.of(prompt)
        ]
        (last,) = (text for text in texts if text.startswith(f"{start}user") and "Four" not in text)
        assert "How many?" in last


@pytest.mark.parametrize("name", ["qwen2.5", "llama3", "gemma3"])
def test_turns_are_encoded_once(tokenizers: dict[str, Tokenizer], name: str) -> None:
    tokenizer = tokenizers[name]
    talk: list[dict[str, Any]] = [{**turn, "content": turn["content"] * 99} for turn in TALK]
    plain = tokenizer.encode_chat(talk)
    for _ in range(2):
        assert tokenizer.encode_chat(talk, salt="s") == plain
    assert len(tokenizer._turn_ids._known) == 3


def test_a_thought_of_qwen3_is_opened_by_the_model(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["qwen3"]
    thinking = tokenizer.encode_chat([QUESTION], variables={"enable_thinking": True})
    start, end = (tokenizer.encode(tag)[0] for tag in ("<think>", "</think>"))
    assert tokenizer.thought_of(thinking) == ThoughtIds(end, start)
    opened = tokenizer.with_thought(thinking)
    assert tokenizer.decode(opened[len(thinking) :]) == "<think>\n"
    assert tokenizer.thought_of(opened) == ThoughtIds(end)
    assert tokenizer.with_thought(opened) == opened
    thoughtless = tokenizer.encode_chat([QUESTION])
    assert tokenizer.decode(thoughtless).endswith("<think>\n\n</think>\n\n")
    assert tokenizer.thought_of(thoughtless) is None
    assert tokenizer.with_thought(thoughtless) == thoughtless
    begun = tokenizer.encode_chat([*TALK[:2]], continue_final=True)
    assert tokenizer.thought_of(begun) is None
    plain = tokenizers["qwen2.5"]
    assert plain.thought_of(plain.encode_chat([QUESTION])) is None


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>\nI </thin think.\n</think>\n\nYes. \n", "I </thin think.", "Yes. \n"),
        ("\n<think></think>Yes.", "", "Yes."),
        ("<think>\ncut off", "cut off", ""),
        ("<think", "", "<think"),
        (" Yes, <think>no</think>", "", " Yes, <think>no</think>"),
        ("", "", ""),
    ],
)
def test_a_thought_that_the_model_opens_is_divided_from_the_answer(
    text: str, thought: str, answer: str
) -> None:
    for pieces in ([text], list(text), cut(text, [3, 9])):
        divider = ThoughtDivider(opened=False)
        found = [*map(divider.push, pieces), divider.flush()]
        assert "".join(each.thought for each in found) == thought
        assert "".join(each.answer for each in found) == answer
    assert ThoughtDivider(opened=False).push("Yes") == Divided(answer="Yes")


@pytest.mark.parametrize(
    ("around", "ids", "expected"),
    [
        (None, [7, 9, 8], [False, False, False]),
        (ThoughtIds(9), [7, 9, 8], [True, True, False]),
        (ThoughtIds(9), [9, 9], [True, False]),
        (ThoughtIds(9, 5), [5, 7, 9, 8], [True, True, True, False]),
        (ThoughtIds(9, 5), [7, 5, 9], [False, False, False]),
        (ThoughtIds(9, 5), [9, 5], [False, False]),
    ],
)
def test_tokens_of_thoughts_are_counted(
    around: ThoughtIds | None, ids: list[int], expected: list[bool]
) -> None:
    meter = ThoughtMeter(around)
    assert [meter.has(token_id) for token_id in ids] == expected
