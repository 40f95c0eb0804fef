"""``python -m bench.harness.correctness.lm_eval_job JOB RESULT``: GSM8K by lm-evaluation-harness.

A process of its own, so that anything that hangs inside can be ended in time. The task is the
package's: its prompts, its few-shot examples, its filters and its scoring. Only the source of the
problems and the choice among them are overridden.
"""

import json
import logging
import random
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

TASK = "gsm8k_cot"
_SHOWN = 300


class _Retries(logging.Handler):
    """Counts the failed calls that lm-eval retries, and keeps the message of the first one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(("Exception:", "API request failed")):
            self.count += text.startswith("Exception:")
            self.first = self.first or text[:_SHOWN]


def _task(data: str | None, folder: Path) -> Path:
    """The package's task file, or one in ``folder`` that includes it and reads ``data``."""
    import lm_eval

    included = Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k-cot.yaml"
    if data is None:
        return included
    override = {
        "include": str(included),
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": data}},
    }
    path = folder / "task.yaml"
    path.write_text(json.dumps(override))  # JSON is YAML
    return path


def evaluate(job: dict[str, Any], folder: Path, retries: _Retries) -> dict[str, Any]:
    """The scores, the problems asked, and every answer that was wrong by the flexible match."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").addHandler(retries)
    # NOTE: a manager with the defaults reads thousands of task files first.
    manager = TaskManager(include_defaults=False)
    (task,) = manager.load(str(_task(job["data"], folder)))["tasks"].values()
    num_docs = len(list(task.eval_docs))
    limit = min(job["num_problems"] or num_docs, num_docs)
    indices = sorted(random.Random(job["seed"]).sample(range(num_docs), limit))
    found = lm_eval.simple_evaluate(
        model="local-chat-completions",
        model_args={
            "model": job["model"],
            "base_url": job["url"] + "/v1/chat/completions",
            "tokenizer_backend": None,
            "num_concurrent": job["concurrency"],
            "max_retries": job["tries"],
            "timeout": job["request_limit_s"],
        },
        tasks=[task],
        task_manager=manager,
        samples={TASK: indices},
        apply_chat_template=True,
        gen_kwargs={"temperature": 0, "max_gen_toks": job["max_tokens"]},
        bootstrap_iters=0,
        log_samples=True,
    )
    scores = found["results"][TASK]
    samples = found["samples"][TASK]
    flexible = [one for one in samples if one["filter"] == "flexible-extract"]
    return {
        "num_problems": len(flexible),
        "indices": indices,
        "flexible": scores["exact_match,flexible-extract"],
        "strict": scores["exact_match,strict-match"],
        "wrong": [
            {
                "problem": one["doc_id"],
                "expected": one["target"],
                "extracted": one["filtered_resps"][0],
                "answer": one["resps"][0][0][-_SHOWN:],
            }
            for one in flexible
            if not one["exact_match"]
        ],
    }


def main(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    # After a call that failed for good, asyncio prints every other one's traceback.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
    retries = _Retries()
    try:
        result = evaluate(job, Path(result_file).parent, retries)
    except Exception as error:  # whatever it is, the caller reports it
        result = {"error": f"{type(error).__name__}: {error}"[: 3 * _SHOWN]}
    result |= {"retries": retries.count, "first_retry": retries.first}
    result |= {"lm_eval": version("lm-eval")}
    Path(result_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
