"""Asks a server for an answer that fits a schema, and judges it with jsonschema."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import jsonschema

from tests.schemas.generator import Schema, random_parameters, random_schema

TEMPERATURE = 1.5
MAX_TOKENS = (*[250] * 6, *[1500] * 6)
"""Of each try."""
AT_ONCE = 16
_ASKED = [{"role": "user", "content": "Nina has 13 shells. Answer in the form that is asked for."}]
_TOOL = "answer"


@dataclass(frozen=True)
class Outcome:
    """``problem`` is "" when an answer fitted. ``cut_off`` answers reached MAX_TOKENS before: a
    schema may allow numbers and nesting without end, and the model is free to go on."""

    kind: str
    seed: int
    schema: Schema = field(repr=False)
    problem: str
    cut_off: int
    text: str


def as_format(schema: Schema) -> dict[str, Any]:
    form = {"name": "x", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def as_tool(schema: Schema) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": _TOOL, "parameters": schema, "strict": True}}
    return {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}


async def judged(url: str, num: int, begin: int = 0) -> list[Outcome]:
    """``num`` random schemas as the form of an answer, and as many as parameters of a tool."""
    seeds = range(begin, begin + num)
    at_once = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=300.0) as http:

        async def one(kind: str, seed: int, schema: Schema) -> Outcome:
            async with at_once:
                return await _judge(http, kind, seed, schema)

        forms = [one("format", seed, random_schema(seed)) for seed in seeds]
        tools = [one("tool", seed, random_parameters(seed)) for seed in seeds]
        return await asyncio.gather(*forms, *tools)


async def _judge(http: httpx.AsyncClient, kind: str, seed: int, schema: Schema) -> Outcome:
    jsonschema.Draft202012Validator.check_schema(schema)
    asked = as_format(schema) if kind == "format" else as_tool(schema)
    for tried, max_tokens in enumerate(MAX_TOKENS):
        body = {
            "messages": _ASKED, "temperature": TEMPERATURE, "max_tokens": max_tokens,
            "seed": 1000 * seed + tried, **asked,
        }  # fmt: skip
        answer = await http.post("/v1/chat/completions", json=body)
        if answer.status_code != 200:
            return Outcome(kind, seed, schema, answer.text, tried, "")
        choice = answer.json()["choices"][0]
        if choice["finish_reason"] != "length":
            text = _text(choice, kind)
            return Outcome(kind, seed, schema, problem(text, schema), tried, text)
    return Outcome(kind, seed, schema, "every answer was cut off", len(MAX_TOKENS), "")


def _text(choice: dict[str, Any], kind: str) -> str:
    if kind == "format":
        return str(choice["message"]["content"])
    (call,) = choice["message"]["tool_calls"]
    return str(call["function"]["arguments"])


def problem(text: str, schema: Schema) -> str:
    """Why the JSON ``text`` does not fit the schema; "" if it does."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    try:
        jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).split("\n")[0]
    return ""
