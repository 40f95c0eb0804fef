"""transformers ``generate`` on the same checkpoint, in a process of its own.

The parent writes one JSON object a line, ``{"prompts": [[ids]], "num_tokens": n}``, and reads one
back: ``{"seconds": s, "outputs": [[ids]]}``. A batch is padded on the left.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.environment import ROOT

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class ReferenceMissing(Exception):
    """transformers is not installed, or could not load the checkpoint."""


@dataclass(frozen=True)
class Generated:
    seconds: float
    outputs: list[list[int]]

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.outputs)) / self.seconds


class Reference:
    """One transformers process with a fixed number of threads."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def generate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Generated:
        """Generate ``num_tokens`` new tokens for each prompt, greedily, in fp32, in one batch."""
        answer = self._ask({"prompts": [list(p) for p in prompts], "num_tokens": num_tokens})
        return Generated(answer["seconds"], answer["outputs"])

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ReferenceMissing("the transformers process ended; its messages are above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running(model: Path, num_threads: int) -> Iterator[Reference]:
    """A transformers process while this is entered. Raises ReferenceMissing."""
    if find_spec("transformers") is None:
        raise ReferenceMissing("transformers is not installed: make setup, or make bench")
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.reference", str(model), str(num_threads)],
        env={**os.environ, **dict.fromkeys(_THREADS, str(num_threads)), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Reference(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def main(folder: str, num_threads: int) -> None:
    import time

    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(num_threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    model.generation_config.eos_token_id = None
    for line in sys.stdin:
        question = json.loads(line)
        prompts, num_tokens = question["prompts"], question["num_tokens"]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        started_at = time.perf_counter()
        generated = model.generate(
            ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
        )
        seconds = time.perf_counter() - started_at
        print(json.dumps({"seconds": seconds, "outputs": generated[:, longest:].tolist()}))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
