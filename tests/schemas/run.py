"""Asks for answers of random schemas: ``python -m tests.schemas.run [--num 200] [--out FILE]``.

Each schema is the form of an answer, and as many others are the parameters of a strict tool; the
bundled model answers at temperature 1.5.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench import environment, result_file
from bench.stack import ROOT, running
from tests.schemas import ask

KEYWORDS = (
    "pattern", "format", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "enum", "const", "properties", "required",
    "additionalProperties", "patternProperties", "maxProperties", "items", "prefixItems",
    "minItems", "maxItems", "anyOf", "allOf", "oneOf", "$ref",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--begin", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/json-schemas.json")
    arguments = parser.parse_args()
    began = time.monotonic()
    with running(ROOT / "models" / "tiny") as stack:
        outcomes = asyncio.run(ask.judged(stack.url, arguments.num, arguments.begin))
    problems = [f"{each.kind} {each.seed}: {each.problem}" for each in outcomes if each.problem]
    results: dict[str, Any] = {
        "schemas": len(outcomes),
        "valid": len(outcomes) - len(problems),
        "answers_cut_off": sum(each.cut_off for each in outcomes),
        "seconds": time.monotonic() - began,
        "schemas_with": dict(Counter(_keywords([each.schema for each in outcomes]))),
        "outcomes": [_outcome(each) for each in outcomes],
    }
    found = result_file.document(
        "json-schemas",
        environment=environment.describe(sys.argv[1:], "tests.schemas.run"),
        server={"model": "tiny"},
        settings={"temperature": ask.TEMPERATURE, "max_tokens": ask.MAX_TOKENS},
        results=results,
        problems=problems,
    )
    result_file.write(arguments.out, found)
    shown = ("schemas", "valid", "answers_cut_off", "seconds")
    print(result_file.one_line({"ok": not problems, **{key: results[key] for key in shown}}))
    return 1 if problems else 0


def _outcome(found: ask.Outcome) -> dict[str, Any]:
    """A line of the file: the seed makes the schema again."""
    shown = {"kind": found.kind, "seed": found.seed, "cut_off": found.cut_off, "text": found.text}
    return shown | ({"problem": found.problem} if found.problem else {})


def _keywords(schemas: list[Any]) -> list[str]:
    """Each keyword as often as there are schemas with it."""
    return [word for schema in schemas for word in KEYWORDS if f"'{word}':" in str(schema)]


if __name__ == "__main__":
    sys.exit(main())
