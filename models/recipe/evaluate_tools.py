"""Share of right answers through tools: `python -m models.recipe.evaluate_tools`.

100 held-out problems in an agent loop that executes the model's calls: with transformers in fp32 on
the CPU, greedily (`--model`), or through a server (`--url http://127.0.0.1:8000`).
"""

import argparse
import json
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.text.qwen_parser import QwenParser
from coordinator.text.tool_events import Arguments, CallBegins, Content
from models.recipe.definitions import Definition
from models.recipe.evaluate import final_of
from models.recipe.tool_loop import Ask, Message, run, tasks

TIMEOUT_S = 120


def local(folder: Path, max_tokens: int = 200) -> Ask:
    """The stored checkpoint, computed by transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def ask(messages: Sequence[Message], tools: Sequence[Definition]) -> Message:
        prompt = tokenizer.apply_chat_template(
            [_rendered(message) for message in messages],
            tools=list(tools),
            enable_thinking=False,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        length = prompt["input_ids"].shape[1]
        with torch.inference_mode():
            out = model.generate(**prompt, do_sample=False, max_new_tokens=max_tokens)[0, length:]
        return parsed(tokenizer.decode(out, skip_special_tokens=True), tools)

    return ask


def served(url: str, model: str) -> Ask:
    """A server's Chat Completions API."""

    def ask(messages: Sequence[Message], tools: Sequence[Definition]) -> Message:
        body = {"model": model, "messages": messages, "tools": tools, "temperature": 0}
        request = urllib.request.Request(
            f"{url}/v1/chat/completions",
            json.dumps({**body, "max_tokens": 300}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            message: Message = json.load(response)["choices"][0]["message"]
        return message

    return ask


def parsed(text: str, tools: Sequence[Definition]) -> Message:
    """The message that a server makes of an output."""
    functions = [tool["function"] for tool in tools]
    parser = QwenParser({function["name"]: function["parameters"] for function in functions})
    content, calls = "", []
    for event in parser.push(text) + parser.flush():
        match event:
            case Content(text=piece):
                content += piece
            case CallBegins(index=index, name=name):
                function = {"name": name, "arguments": ""}
                calls.append({"id": f"call-{index}", "type": "function", "function": function})
            case Arguments(index=index, text=piece):
                calls[index]["function"]["arguments"] += piece
    message: Message = {"role": "assistant", "content": content.strip() or None}
    return {**message, "tool_calls": calls} if calls else message


def _rendered(message: Message) -> Message:
    """The message as the chat template takes it, with `arguments` as an object."""
    calls = [
        {"function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "content": message["content"] or "", "tool_calls": calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/tiny"))
    parser.add_argument("--url", help="evaluate a server instead")
    parser.add_argument("--served-model", default="tiny", help="the server's name of the model")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--show", type=int, default=5, help="wrong answers to print")
    args = parser.parse_args()

    ask = served(args.url, args.served_model) if args.url else local(args.model)
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    num_calls = num_failed = 0
    begin = time.monotonic()
    for task in tasks(args.count):
        outcome = run(ask, task)
        num_calls, num_failed = num_calls + outcome.num_calls, num_failed + outcome.num_failed
        total[task.kind] += 1
        right[task.kind] += (good := final_of(outcome.text) == task.final)
        if not good and total.total() - right.total() <= args.show:
            print(task.kind, task.question, task.final, outcome, sep="\n  ")
    result: dict[str, Any] = {
        "problems": total.total(),
        "right": right.total() / total.total(),
        "right_by_kind": {kind: f"{right[kind]} of {total[kind]}" for kind in sorted(total)},
        "calls": num_calls,
        "failed_calls": num_failed,
        "seconds": round(time.monotonic() - begin, 1),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
