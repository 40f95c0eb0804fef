"""lm-evaluation-harness: its three kinds of task, through ``local-completions`` over local data.

Tasks that are scored by log-probabilities of prompts are compared with the same tasks over
transformers.
"""

import json
from typing import Any

import pytest
import torch
from openai import OpenAI

from bench.stack import ROOT
from coordinator.text.tokenizer import Tokenizer
from tests.clients.api import MODEL, Api
from tests.engine.bundled_truth import prompt_truth

TINY = ROOT / "models" / "tiny"
NUM_DOCS = 8
_LINES = (ROOT / "models" / "heldout.jsonl").read_text().splitlines()
PROBLEMS = [json.loads(line) for line in _LINES[:NUM_DOCS]]
"""Which the model was not trained on."""
TASKS: dict[str, dict[str, Any]] = {
    "answers": {
        "output_type": "generate_until",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{final}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 160, "temperature": 0},
        "filter_list": [
            {
                "name": "number",
                "filter": [{"function": "regex", "regex_pattern": "#### (\\d+)"},
                           {"function": "take_first"}],
            }
        ],
        "metric_list": [{"metric": "exact_match"}],
    },
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "Question: {{question}}\nAnswer: {{lead}}####",
        "doc_to_choice": ["{{final}}", "{{final + 1}}", "{{final + 10}}"],
        "doc_to_target": 0,
        "metric_list": [{"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "Question: {{question}}\nAnswer: {{answer}}",
        "metric_list": [{"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The tasks over a local file."""
    from lm_eval.tasks import TaskManager

    folder = tmp_path_factory.mktemp("lm-eval")
    data = folder / "problems.jsonl"
    rows = [each | {"lead": each["answer"].partition("####")[0]} for each in PROBLEMS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    manager, found = TaskManager(include_defaults=False), []
    for name, task in TASKS.items():
        path = folder / f"{name}.yaml"
        where = {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")}
        path.write_text(
            json.dumps(  # JSON is YAML
                {"task": name, "dataset_path": "json", "dataset_kwargs": where}
                | {"test_split": "test"} | task
            )
        )  # fmt: skip
        found += manager.load(str(path))["tasks"].values()
    return found


def evaluated(tasks: list[Any], backend: Any, **model_args: Any) -> dict[str, Any]:
    """Each task's scores."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model=backend, model_args=model_args, tasks=tasks, bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),
    )  # fmt: skip
    assert found is not None
    return {name: found["results"][name] for name in TASKS if name in found["results"]}


def over_transformers() -> Any:
    """A model of the harness that scores tokens by transformers, in this process."""
    from lm_eval.api.model import TemplateLM

    tokenizer = Tokenizer.load(TINY)

    class OverTransformers(TemplateLM):
        eot_token_id = tokenizer.info.eos_ids[0]

        def tok_encode(self, string: str, **_: Any) -> list[int]:
            return tokenizer.encode(string).tolist()

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            return [self._score(context, rest) for _, context, rest in requests]

        def _score(self, context: list[int], rest: list[int]) -> tuple[float, bool]:
            logprobs = prompt_truth([*context, *rest], tokenizer.num_valid_ids)[-len(rest) :]
            own = logprobs.gather(1, torch.tensor(rest).unsqueeze(1)).sum()
            return float(own), logprobs.argmax(-1).tolist() == rest

        def loglikelihood_rolling(self, requests: Any, **_: Any) -> list[float]:
            texts = [self.tok_encode(request.args[0]) for request in requests]
            return [self._score([self.eot_token_id], text)[0] for text in texts]

        def generate_until(self, requests: Any, **_: Any) -> list[str]:
            raise NotImplementedError

    return OverTransformers()


@pytest.fixture(scope="module")
def ours(api: Api, tasks: list[Any]) -> dict[str, Any]:
    return evaluated(
        tasks, "local-completions", model=MODEL, base_url=f"{api.base}/completions",
        tokenizer_backend="huggingface", tokenizer=str(TINY), num_concurrent=4, max_length=1024,
        max_retries=1,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["choices", "rolling"])
def test_log_probabilities_score_as_over_transformers(
    tasks: list[Any], ours: dict[str, Any], name: str
) -> None:
    (task,) = [each for each in tasks if each.config.task == name]
    truth = evaluated([task], over_transformers())[name]
    metrics = {metric for metric, value in truth.items() if isinstance(value, float)}
    assert metrics
    for metric in metrics:
        assert ours[name][metric] == pytest.approx(truth[metric], rel=1e-4), metric


def test_texts_score_as_the_same_completions_do(ours: dict[str, Any], client: OpenAI) -> None:
    right = 0
    for problem in PROBLEMS:
        prompt = f"Question: {problem['question']}\nAnswer:"
        answer = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=160, temperature=0, stop=["\n\n"]
        )
        right += f"#### {problem['final']}" in answer.choices[0].text
    assert ours["answers"]["exact_match,number"] == right / NUM_DOCS > 0
