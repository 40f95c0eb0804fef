"""Exact match on the held-out problems: `python -m models.recipe.evaluate --model models/tiny`.

Loads the stored checkpoint with transformers, computes in fp32 on the CPU, decodes greedily one
request at a time: the numbers that a server of this model has to reproduce.
"""

import argparse
import json
import platform
import re
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

FINAL = re.compile(r"####\s*(-?\d+)")


def final_of(text: str) -> int | None:
    """The number after the last `####`."""
    found = FINAL.findall(text)
    return int(found[-1]) if found else None


def answer_of(model: Any, tokenizer: Any, question: str, **template: Any) -> tuple[str, int, int]:
    """Greedy answer with the token counts of prompt and answer."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
        **template,
    )
    length = prompt["input_ids"].shape[1]
    with torch.inference_mode():
        out = model.generate(**prompt, do_sample=False, max_new_tokens=200)[0, length:]
    return tokenizer.decode(out, skip_special_tokens=True), length, len(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/tiny"))
    parser.add_argument("--problems", type=Path, default=Path("models/heldout.jsonl"))
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--thinking", action="store_true")
    parser.add_argument("--show", type=int, default=5, help="wrong answers to print")
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    rows = [json.loads(line) for line in args.problems.read_text().splitlines()][: args.limit]
    right = wrong = prompts = answers = 0
    begin = time.monotonic()
    for row in rows:
        text, prompt_len, answer_len = answer_of(
            model, tokenizer, row["question"], enable_thinking=args.thinking
        )
        prompts, answers = prompts + prompt_len, answers + answer_len
        if final_of(text) == row["final"]:
            right += 1
            continue
        wrong += 1
        if wrong <= args.show:
            print(row["question"], row["answer"], text, sep="\n  ")
    seconds = time.monotonic() - begin
    result = {
        "problems": len(rows),
        "exact_match": right / len(rows),
        "thinking": args.thinking,
        "mean_prompt_tokens": round(prompts / len(rows), 1),
        "mean_answer_tokens": round(answers / len(rows), 1),
        "seconds": round(seconds, 1),
        "tokens_per_second": round(answers / seconds, 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": platform.machine(),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
