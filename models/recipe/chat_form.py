"""Writes a conversation in the chat template's form, in pieces with their loss weights.

The form is written out here because rendering the Jinja template for millions of conversations is
slow; a test holds the two equal. A piece is `(string, weight)`: answers count fully in the loss,
everything else a little, so that plain completion of a prompt stays sensible too.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]
Pieces = list[tuple[str, float]]

ANSWER, CONTEXT = 1.0, 0.1
TOOLS_BEGIN = "# Tools\n\nYou may call these functions:\n\n<tools>"
TOOLS_END = (
    "\n</tools>\n\nTo call one, answer with:\n\n<tool_call>\n<function=NAME>\n<parameter=PARAMETER>"
    "\nVALUE\n</parameter>\n</function>\n</tool_call>"
)


def pieces_of(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Pieces:
    """The conversation with the assistant's turns behind the last question as the ones to learn.

    Messages are OpenAI's, with `arguments` as an object. A turn with `reasoning_content` is one
    that thinks.
    """
    last_user = max(i for i, message in enumerate(messages) if message["role"] == "user")
    text = system_part(messages, tools)
    pieces: Pieces = []
    for i, message in enumerate(messages):
        match message["role"]:
            case "user":
                text += f"<|im_start|>user\n{message['content']}<|im_end|>\n"
            case "tool":
                text += "" if messages[i - 1]["role"] == "tool" else "<|im_start|>user"
                text += f"\n<tool_response>\n{message['content']}\n</tool_response>"
                ends = i + 1 == len(messages) or messages[i + 1]["role"] != "tool"
                text += "<|im_end|>\n" if ends else ""
            case "assistant" if i < last_user:
                text += f"<|im_start|>assistant\n{answer_part(message)}<|im_end|>\n"
            case "assistant":
                # NOTE: the empty think block belongs to the prompt's piece. Tokenized apart, its
                # blank line would become two tokens, which no served prompt contains.
                text += "<|im_start|>assistant\n<think>\n"
                answer = f"{answer_part(message)}<|im_end|>"
                if thought := message.get("reasoning_content"):
                    answer = f"{thought}\n</think>\n\n{answer}"
                else:
                    text += "\n</think>\n\n"
                pieces += [(text, CONTEXT), (answer, ANSWER)]
                text = "\n"
    return pieces


def system_part(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    """The system turn, which also holds the definitions of the tools; "" when there is neither."""
    parts = []
    if tools:
        shown = "".join(f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in tools)
        parts.append(f"{TOOLS_BEGIN}{shown}{TOOLS_END}")
    if messages[0]["role"] == "system":
        parts.append(messages[0]["content"])
    return "<|im_start|>system\n" + "\n\n".join(parts) + "<|im_end|>\n" if parts else ""


def answer_part(message: Message) -> str:
    """Text and calls of one of the assistant's turns."""
    content: str = message.get("content") or ""
    calls = [call_part(call["function"]) for call in message.get("tool_calls", ())]
    return "\n\n".join(part for part in (content, "\n".join(calls)) if part)


def call_part(function: Mapping[str, Any]) -> str:
    """One call, its arguments in the order given."""
    parameters = ""
    for name, value in function["arguments"].items():
        text = value if isinstance(value, str) else json.dumps(value)
        parameters += f"<parameter={name}>\n{text}\n</parameter>\n"
    return f"<tool_call>\n<function={function['name']}>\n{parameters}</function>\n</tool_call>"
