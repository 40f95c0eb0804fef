"""The bundled model: its files, tokenizer and template, and the recipe behind it."""

import json
import re
import unicodedata
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import jinja2
import jinja2.sandbox
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer

from models.recipe.architecture import CONFIG, MTP, VOCAB_SIZE, stored_dtype
from models.recipe.conversations import chat
from models.recipe.problems import drill, heldout, split_of, word_problems
from models.recipe.work import Problem, calculate

MODELS = Path(__file__).parents[2] / "models"
TINY = MODELS / "tiny"
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


@cache
def load_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


@pytest.fixture
def tokenizer() -> Tokenizer:
    return load_tokenizer()


def refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


@cache
def template() -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    return environment.from_string((TINY / "chat_template.jinja").read_text())


def render(messages: list[dict[str, Any]], **values: Any) -> str:
    return template().render(messages=messages, add_generation_prompt=True, **values)


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


# The files


def test_folder_is_small() -> None:
    assert sum(file.stat().st_size for file in TINY.iterdir()) <= 16 * 2**20


def test_config_is_the_recipe_s() -> None:
    with safe_open(TINY / "model.safetensors", "pt") as file:
        drafts = any(name.startswith("mtp.") for name in file.keys())  # noqa: SIM118
    expected = {**CONFIG, **MTP} if drafts else CONFIG
    assert json.loads((TINY / "config.json").read_text()) == expected


def test_tensors_have_the_stored_dtypes() -> None:
    with safe_open(TINY / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name, tensor in tensors.items():
        assert tensor.dtype == stored_dtype(name), name
        assert torch.isfinite(tensor).all(), name
    assert {name for name, t in tensors.items() if t.dtype == torch.float32} == {
        f"model.layers.{layer}.linear_attn.{part}"
        for layer in (0, 1, 2, 4, 5, 6)
        for part in ("A_log", "norm.weight")
    }


# The tokenizer


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs", "Cn"))))
def test_text_survives_up_to_nfc(text: str) -> None:
    tokenizer = load_tokenizer()
    found = tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False)
    assert found == unicodedata.normalize("NFC", text)


def test_digits_are_split_singly(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("12345 a678").tokens
    assert [t for t in tokens if any(c.isdigit() for c in t)] == list("12345678")
    learnt = [t for t in tokenizer.get_vocab() if len(t) > 1 and not t.startswith("<")]
    assert not [t for t in learnt if any(c.isdigit() for c in t)]


def test_added_tokens(tokenizer: Tokenizer) -> None:
    generation = json.loads((TINY / "generation_config.json").read_text())
    end, stop = (tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|im_end|>"))
    assert generation["eos_token_id"] == [stop, end]
    assert (CONFIG["pad_token_id"], CONFIG["eos_token_id"]) == (end, stop)
    assert max(tokenizer.get_vocab().values()) < VOCAB_SIZE
    added = {t.content: t.special for t in tokenizer.get_added_tokens_decoder().values()}
    plain = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>"}
    assert not any(added[token] for token in plain)
    assert added["<|im_start|>"]
    assert added["<|im_end|>"]


# The template


def test_template_forms() -> None:
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render([user("Hi")]) == prompt + "<think>\n"
    assert render([user(" Hi\n")], enable_thinking=True) == prompt + "<think>\n"
    closed = prompt + "<think>\n\n</think>\n\n"
    assert render([user("Hi")], enable_thinking=False) == closed
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert render([user(parts)], enable_thinking=False) == closed
    system = {"role": "system", "content": "Be brief."}
    head = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert render([system, user("Hi")], enable_thinking=False) == head + closed


def test_template_drops_past_thoughts() -> None:
    past = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}
    text = render([user("A?"), past, user("B?")])
    assert "<|im_start|>assistant\nYes.<|im_end|>\n<|im_start|>user\nB?" in text
    assert "hm" not in text
    kept = render([user("A?"), past, user("B?")], preserve_thinking=True)
    assert "<|im_start|>assistant\n<think>\nhm\n</think>\n\nYes.<|im_end|>\n" in kept


def test_template_renders_tools() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1, "b": "x"}}}
    messages = [
        user("Add."),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "4"},
    ]
    text = render(messages, tools=[{"type": "function"}])
    assert '<tools>\n{"type": "function"}\n</tools>' in text
    assert (
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nx\n"
        "</parameter>\n</function>\n</tool_call><|im_end|>\n"
    ) in text
    assert (
        "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n"
        "<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    ) in text


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "system", "content": "x"}],
        [user("x"), {"role": "system", "content": "x"}],
        [user("x"), {"role": "robot", "content": "x"}],
        [user([{"type": "image"}])],
        [user(3)],
    ],
)
def test_template_refuses(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(jinja2.TemplateError):
        render(messages)


def test_training_texts_are_what_is_served(tokenizer: Tokenizer) -> None:
    """The recipe writes the chat form out by hand, in pieces: both must change nothing."""
    rng = Random("served")
    for _ in range(200):
        pieces = [piece for piece, _ in chat(rng, 2)]
        text = "".join(pieces)
        turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", text, re.DOTALL)
        messages = [{"role": role, "content": content} for role, content in turns[:-1]]
        thinking = "<think>\n\n</think>" not in text
        assert text.startswith(render(messages, enable_thinking=thinking))
        assert ids(tokenizer, text) == [i for piece in pieces for i in ids(tokenizer, piece)]


# The problems


def check(problem: Problem) -> None:
    results = []
    for line in problem.lines:
        [(left, op, right, result)] = EQUATION.findall(line)
        assert calculate(int(left), op, int(right)) == int(result), line  # type: ignore[arg-type]
        results.append(int(result))
    assert results[-1] == problem.final
    assert problem.answer.endswith(f"\n#### {problem.final}")


def test_worked_answers_are_right() -> None:
    rng = Random("right")
    for problem in islice(word_problems(rng, "train"), 3000):
        check(problem)
    for _ in range(500):
        check(drill(rng))


def test_problems_are_deterministic() -> None:
    first, second = (list(islice(word_problems(Random("a"), "train"), 50)) for _ in range(2))
    assert first == second


def test_heldout_file_is_the_recipe_s_and_never_trained_on() -> None:
    rows = [json.loads(line) for line in (MODELS / "heldout.jsonl").read_text().splitlines()]
    expected = [
        {"question": p.question, "answer": p.answer, "final": p.final} for p in heldout(200)
    ]
    assert rows == expected
    questions = {row["question"] for row in rows}
    assert len(questions) == 200
    assert all(split_of(question) == "heldout" for question in questions)
    trained = {p.question for p in islice(word_problems(Random("t"), "train"), 5000)}
    assert not questions & trained
