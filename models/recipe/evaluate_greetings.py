"""Answers to greetings and to questions off the topic.

    python -m models.recipe.evaluate_greetings

Asks every phrasing of greetings.py once, as `evaluate` does; the answer must be the trained one.
"""

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.recipe.evaluate import answer_of
from models.recipe.greetings import SMALL_TALK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/tiny"))
    parser.add_argument("--every", type=int, default=1, help="ask each nth phrasing only")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    asked = [*SMALL_TALK][:: args.every]
    right = 0
    for question in asked:
        text, _, _ = answer_of(model, tokenizer, question, enable_thinking=False)
        if text == SMALL_TALK[question]:
            right += 1
        else:
            print(f"{question!r}: {text!r}")
    print(json.dumps({"phrasings": len(asked), "right": round(right / len(asked), 4)}))


if __name__ == "__main__":
    main()
