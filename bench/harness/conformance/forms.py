"""Checks: answers in a given form, OpenAI's and vLLM's."""

import json
import re
from typing import Any

from bench.harness.conformance.check import VLLM, Ask, Check, bad_request, chat, recommended
from bench.harness.conformance.server import Answer, Server, require, streamed_text

_SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}, "of": {"enum": ["shells", "cups"]}},
    "required": ["count", "of"],
    "additionalProperties": False,
}
_GRAMMAR = 'root ::= "<" [a-z] [a-z] ">"'
_FORMS: dict[str, tuple[Any, str]] = {
    "regex": (r"[0-9]{3}-[a-f]{2}", r"[0-9]{3}-[a-f]{2}"),
    "choice": (["yes", "no"], "yes|no"),
    "grammar": (_GRAMMAR, "<[a-z]{2}>"),
}


def _schema(**fields: Any) -> Ask:
    form = {"name": "amount", "schema": _SCHEMA, "strict": True}
    asked = {"response_format": {"type": "json_schema", "json_schema": form}, "max_tokens": 256}
    return chat(**{**asked, **fields})


def _fits(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    right = (
        isinstance(value, dict)
        and value.keys() == {"count", "of"}
        and type(value["count"]) is int
        and value["of"] in ("shells", "cups")
    )
    require(right, f"not what the schema asks for: {text!r}")
    return json.dumps(value)


def schema(answer: Answer) -> str:
    value = answer.completion(optional=True)
    require(
        value.choice.finish_reason == "stop", f"finish_reason is {value.choice.finish_reason!r}"
    )
    return _fits(value.text)


async def streamed(server: Server) -> None:
    answer = await _schema(stream=True)(server)
    answer.ok(optional=True)
    _fits(streamed_text(answer.chunks()))


def json_object(answer: Answer) -> None:
    """The answer is an object, or the beginning of one if it was cut off."""
    value = answer.completion(optional=True)
    text = value.text.strip()
    require(text.startswith("{"), f"no object: {text!r}")
    if value.choice.finish_reason == "stop":
        require(isinstance(json.loads(text), dict), f"no object: {text!r}")


def cut_off(answer: Answer) -> None:
    reason = answer.completion(optional=True).choice.finish_reason
    require(reason == "length", f"finish_reason is {reason!r}, not 'length'")


def text(answer: Answer) -> None:
    require(answer.completion(optional=True).text, "the answer is empty")


def _of_vllm(name: str) -> Check:
    value, pattern = _FORMS[name]

    def judge(answer: Answer) -> None:
        said = answer.completion(optional=True).text
        require(re.fullmatch(pattern, said.strip()), f"{said!r} does not match {pattern!r}")

    ask = chat(structured_outputs={name: value}, max_tokens=64)
    return recommended(f"structured_outputs: {name}", ask, judge, VLLM)


def _is_schema(answer: Answer) -> str:
    return _fits(answer.completion(optional=True).text)


_WRONG = {"name": "wrong", "schema": {"type": "strange"}, "strict": True}


CHECKS = (
    recommended(
        "response_format text", chat(response_format={"type": "text"}, max_tokens=32), text
    ),
    recommended(
        "response_format json_object",
        chat(response_format={"type": "json_object"}, max_tokens=256),
        json_object,
    ),
    recommended("response_format json_schema", _schema(), schema),
    recommended(
        "json_schema at a high temperature",
        _schema(temperature=1.5, seed=1, max_tokens=512),
        _is_schema,
    ),
    recommended("json_schema streamed", streamed),
    recommended("a form that is cut off ends with length", _schema(max_tokens=2), cut_off),
    recommended(
        "a schema of an unknown type is a 400",
        _schema(response_format={"type": "json_schema", "json_schema": _WRONG}),
        bad_request,
    ),
    *map(_of_vllm, _FORMS),
    recommended(
        "structured_outputs: json",
        chat(structured_outputs={"json": _SCHEMA}, max_tokens=256),
        _is_schema,
        VLLM,
    ),
)
