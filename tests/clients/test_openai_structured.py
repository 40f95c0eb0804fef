"""openai-python: answers in a given form."""

import json
import re
from enum import StrEnum
from typing import Annotated, Any

import openai
import pytest
from pydantic import BaseModel, Field, ValidationError

from tests.clients.api import MODEL
from tests.clients.tools import SHELLS

ASKED: list[Any] = [{"role": "user", "content": SHELLS}]
Short = Annotated[str, Field(max_length=12)]
Small = Annotated[int, Field(ge=0, le=999)]


class Unit(StrEnum):
    PIECE = "piece"
    BOX = "box"


class Item(BaseModel):
    name: Short
    count: Small
    unit: Unit
    price: Annotated[float, Field(ge=0, le=99, multiple_of=0.5)] | None


class Order(BaseModel):
    customer: Short
    items: Annotated[list[Item], Field(min_length=1, max_length=2)]
    paid: bool


class Step(BaseModel):
    """One that contains itself."""

    text: Short
    then: Annotated[list["Step"], Field(max_length=1)]


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    given = {"messages": ASKED, "temperature": 0, "max_tokens": 300, **fields}
    return client.chat.completions.create(model=MODEL, **given)


@pytest.mark.parametrize("kind", [Item, Order])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_parse_gives_the_model(
    client: openai.OpenAI, kind: type[BaseModel], temperature: float
) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASKED, response_format=kind, temperature=temperature, seed=2,
        max_tokens=600,
    )  # fmt: skip
    assert isinstance(answer.choices[0].message.parsed, kind)
    assert answer.choices[0].finish_reason == "stop"


def test_a_recursive_model(client: openai.OpenAI) -> None:
    for seed in range(5):
        try:
            answer = client.chat.completions.parse(
                model=MODEL, messages=ASKED, response_format=Step, temperature=1.5, seed=seed,
                max_tokens=400,
            )  # fmt: skip
        except openai.LengthFinishReasonError:
            continue  # it may go on for as long as it likes
        assert isinstance(answer.choices[0].message.parsed, Step)
        return
    pytest.fail("none of five answers ended")


def test_parse_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED, response_format=Item, temperature=0, max_tokens=300
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        message = stream.get_final_completion().choices[0].message
    assert len(deltas) > 1
    assert "".join(deltas) == message.content
    assert isinstance(message.parsed, Item)


def test_json_mode(client: openai.OpenAI) -> None:
    found = []
    for seed in range(4):
        choice = ask(
            client, response_format={"type": "json_object"}, temperature=1.5, seed=seed
        ).choices[0]
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            found.append(json.loads(choice.message.content))
    assert found
    assert all(isinstance(each, dict) for each in found)


def test_text_is_no_form(client: openai.OpenAI) -> None:
    plain = ask(client).choices[0].message.content
    assert ask(client, response_format={"type": "text"}).choices[0].message.content == plain


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": r"[0-9]{3}-[a-f]{2}"}, r"[0-9]{3}-[a-f]{2}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'start: "<" /[a-z]{2,5}/ ">"'}, "<[a-z]{2,5}>"),
        ({"grammar": 'root ::= "<" [a-z] [a-z] ">"'}, "<[a-z]{2}>"),
        ({"json": {"type": "integer", "minimum": 10, "maximum": 99}}, "[0-9]{2}"),
    ],
)
def test_forms_of_vllm(client: openai.OpenAI, form: dict[str, Any], pattern: str) -> None:
    ((name, value),) = form.items()
    for body in ({"structured_outputs": form}, {f"guided_{name}": value}):
        choice = ask(client, extra_body=body, temperature=1.5, seed=4).choices[0]
        assert re.fullmatch(pattern, choice.message.content)
        assert choice.finish_reason == "stop"


def test_completions_have_forms_too(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="One and one is", extra_body={"guided_choice": ["two", "three"]}
    )
    assert answer.choices[0].text in ("two", "three")


def test_logprobs_of_a_constrained_answer(client: openai.OpenAI) -> None:
    choice = ask(
        client, logprobs=True, top_logprobs=2, extra_body={"guided_choice": ["yes", "no"]}
    ).choices[0]
    content = choice.logprobs.content
    assert "".join(each.token for each in content).startswith(choice.message.content)


def test_an_answer_that_is_cut_off_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            model=MODEL, messages=ASKED, response_format=Order, max_tokens=3
        )


def test_a_schema_that_cannot_be_served_is_refused_with_its_place(client: openai.OpenAI) -> None:
    wrong = {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "strange"}}}}
    form = {"type": "json_schema", "json_schema": wrong}
    with pytest.raises(openai.BadRequestError, match="strange") as refused:
        ask(client, response_format=form)
    assert refused.value.code == "invalid_grammar"
    assert refused.value.param == "response_format.json_schema.schema"


def test_a_form_that_pydantic_would_refuse_never_comes(client: openai.OpenAI) -> None:
    """Whether the test would notice: without the form the same answer is no Item."""
    with pytest.raises(ValidationError):
        Item.model_validate_json(ask(client).choices[0].message.content)
