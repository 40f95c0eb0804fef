"""``python -m bench.start``: how long a start takes, and what then fits on the GPU.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.start --out start.json -- --model /tmp/full --load-format dummy \\
        --device cuda --quantize fp8

Starts ``baton up`` ``--starts`` times with the arguments behind ``--``. The first start may compile
kernels, which later ones find. The last start then serves ``--at-once`` requests of ``--input-len``
tokens with answers of ``--output-len`` all at once, and after them one prompt of ``--prompt``
tokens alone. BATON_* variables of this process are not passed on: name them with ``--setting``.
"""

import asyncio
import re
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Annotated, Any

import msgspec
import typer

from bench import stack
from bench.commands import CommandFailed, baton_bench
from bench.environment import gpus_said
from bench.harness.client.required import RequestFailed, one_by_one
from bench.harness.options import named_values
from bench.recording import Recording

RUN_S = 240.0
NUM_IDS = 200_000
"""Ids of prompts are below this; special tokens have the highest ids."""
ANSWER_LEN = 64
TOLD = re.compile(r"memory: |ready after|compil")
"""Lines of the workers' logs about a start."""


def main(
    up: Annotated[list[str], typer.Argument(help="For baton up, behind --.")],
    out: Annotated[Path, typer.Option(help="Result file.")],
    starts: Annotated[int, typer.Option(help="One after another.")] = 2,
    at_once: Annotated[int, typer.Option(help="Requests; 0: none.")] = 64,
    input_len: Annotated[int, typer.Option(help="Tokens of each of the requests at once.")] = 1024,
    output_len: Annotated[int, typer.Option(help="Tokens of their answers.")] = 1024,
    prompt: Annotated[int, typer.Option(help="Tokens of a long prompt; 0: none.")] = 131_072,
    setting: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, which servers get as BATON_NAME.")
    ] = None,
    num_ids: Annotated[int, typer.Option(help="The prompt's ids are below.")] = NUM_IDS,
) -> None:
    """Measure, and write the results, also those before a failure. Exit code: 0, or 1 after one."""
    model = up[up.index("--model") + 1]
    given = named_values("--setting", setting)
    settings = {
        "at_once": at_once, "input_len": input_len, "output_len": output_len, "prompt": prompt,
        "setting": given,
    }  # fmt: skip
    run = Recording("bench.start", out, settings, {"arguments": up})
    run.results["starts"] = found = list[dict[str, Any]]()
    stopped = None
    try:
        for number in range(starts):
            began = time.perf_counter()
            with stack.started(*up, settings=given) as served:
                ready_s = time.perf_counter() - began
                found.append({"ready_s": ready_s, "log": _told(served.lines)})
                if number == starts - 1 and at_once:
                    lengths = "--input-len", str(input_len), "--output-len", str(output_len)
                    run.results["at_once"] = _at_once(served.url, model, at_once, lengths)
                    run.results["gpu_memory"] = gpus_said("memory.used,memory.total")
                if number == starts - 1 and prompt:
                    run.results["long_prompt"] = _long_prompt(served.url, prompt, num_ids)
                served.stop()
    except (stack.StackFailed, CommandFailed, RequestFailed) as error:
        stopped = str(error)
    run.end(stopped)


def _told(lines: list[str]) -> list[str]:
    return [line.rstrip("\n") for line in lines if TOLD.search(line)]


def _at_once(url: str, model: str, requests: int, lengths: Iterable[str]) -> dict[str, Any]:
    """The result of one level of ``baton bench throughput``."""
    measured = baton_bench(
        "throughput", "--tokenizer", model, "--levels", str(requests), "--requests",
        str(requests), "--rounds", "1", *lengths, url=url, within_s=RUN_S,
    )  # fmt: skip
    print(measured.said, end="", flush=True)
    level: dict[str, Any] = measured.document["results"]["levels"][0]
    return level


def _long_prompt(url: str, num_tokens: int, num_ids: int) -> dict[str, Any]:
    random = Random(1)
    body = {
        "prompt": [random.randrange(num_ids) for _ in range(num_tokens)],
        "max_tokens": ANSWER_LEN,
        "ignore_eos": True,
    }
    (record,) = asyncio.run(one_by_one(url, [body]))
    usage = None if record.usage is None else msgspec.to_builtins(record.usage)
    return {"status": record.status, "seconds": record.e2e_s, "usage": usage}


if __name__ == "__main__":
    typer.run(main)
