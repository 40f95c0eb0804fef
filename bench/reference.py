"""transformers ``generate`` on the same checkpoint, in a process of its own (processes.py). A batch
is padded on the left."""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bench.environment import ROOT
from bench.processes import Answer, Commands, MemberFailed, Members, serve

LOAD_S, GENERATE_S = 120.0, 300.0
"""Seconds that a process may take to load the model, and for a batch."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class ReferenceMissing(Exception):
    """transformers is not installed, or could not load the checkpoint."""


@dataclass(frozen=True)
class Reference:
    """One transformers process with a fixed number of threads."""

    process: Members

    def generate_s(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Seconds to generate ``num_tokens`` new tokens for each prompt, greedily, in fp32, in one
        batch. Raises MemberFailed."""
        asked = {"prompts": [list(prompt) for prompt in prompts], "num_tokens": num_tokens}
        (answer,) = self.process.ask("generate", GENERATE_S, asked)
        return float(answer["seconds"])


@contextmanager
def running(model: Path, num_threads: int) -> Iterator[Reference]:
    """A transformers process while this is entered. Raises ReferenceMissing."""
    if find_spec("transformers") is None:
        raise ReferenceMissing("transformers is not installed: make setup, or make bench")
    threads = [f"{name}={num_threads}" for name in _THREADS]
    command = ["env", f"PYTHONPATH={ROOT}", *threads, sys.executable, "-m", "bench.reference"]
    with tempfile.TemporaryDirectory() as logs, Members(1, Path(logs), command) as process:
        try:
            process.ask("load", LOAD_S, {"model_dir": str(model), "num_threads": num_threads})
            yield Reference(process)
        except MemberFailed as error:
            log = (Path(logs) / "member-0.txt").read_text()
            raise ReferenceMissing(f"transformers: {error}: {log[-2000:]}") from None


class Transformers:
    """The model in this process."""

    def __init__(self, model_dir: Path, num_threads: int) -> None:
        from transformers import AutoModelForCausalLM

        self.loaded: Answer = {}
        torch.set_num_threads(num_threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self._model.eval()
        self._model.generation_config.eos_token_id = None

    @property
    def commands(self) -> Commands:
        return {"generate": self.generate}

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Answer:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        began = time.perf_counter()
        self._model.generate(
            ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
        )
        return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    serve(Transformers)
