"""What every check reads out of an answer, with what came instead in the message."""

from typing import Any

from bench.conformance.check import NotOffered, Violation, require
from bench.conformance.server import Answer

MISSING = (404, 405, 501)


def ok(answer: Answer) -> Any:
    """The JSON of a 200. Raises NotOffered for a path or method that is not there."""
    if answer.status in MISSING:
        raise NotOffered(str(answer))
    require(answer.status == 200, str(answer))
    value = answer.json()
    require(isinstance(value, dict), f"not a JSON object: {answer}")
    return value


def offered(answer: Answer) -> Any:
    """Like ``ok``, where a 400 means that the server does not do what was asked for."""
    if answer.status == 400:
        raise NotOffered(str(answer))
    return ok(answer)


def choices(value: Any) -> list[Any]:
    """The choices of a completion or chunk, checked to be objects with their own index."""
    found = value.get("choices")
    if not isinstance(found, list) or not all(isinstance(c, dict) for c in found):
        raise Violation(f"choices is {found!r}")
    return found


def choice(value: Any) -> Any:
    """The only choice."""
    found = choices(value)
    require(len(found) == 1, f"{len(found)} choices, not 1")
    return found[0]


def chat_text(value: Any) -> str:
    """The text of the only choice of a chat completion."""
    message = choice(value).get("message")
    require(isinstance(message, dict), f"message is {message!r}")
    require(message.get("role") == "assistant", f"role is {message.get('role')!r}")
    content = message.get("content")
    if not isinstance(content, str):
        raise Violation(f"content is {content!r}")
    return content


def usage(value: Any) -> tuple[int, int]:
    """(prompt, completion) tokens, checked to add up."""
    found = value.get("usage")
    if not isinstance(found, dict):
        raise Violation(f"usage is {found!r}")
    prompt, completion = found.get("prompt_tokens"), found.get("completion_tokens")
    if type(prompt) is not int or type(completion) is not int:
        raise Violation(f"usage is {found!r}")
    require(found.get("total_tokens") == prompt + completion, f"usage does not add up: {found!r}")
    return prompt, completion


def chunks(answer: Answer) -> list[Any]:
    """The chunks of a stream that was opened with 200, whatever its form; no error among them."""
    if answer.status in MISSING:
        raise NotOffered(str(answer))
    require(answer.status == 200, str(answer))
    found = list(answer.events().chunks)
    require(bool(found), f"a stream without events: {answer}")
    for chunk in found:
        require("error" not in chunk, f"an error in the stream: {chunk!r}")
    return found


def streamed_text(found: list[Any], key: str = "delta") -> str:
    """What the chunks of one choice add up to: of ``delta.content`` for a chat, of ``text``."""
    said = [one for chunk in found for one in choices(chunk)]
    if key == "delta":
        said = [one.get("delta") or {} for one in said]
        key = "content"
    return "".join(one.get(key) or "" for one in said)


def error_of(answer: Answer, status: int) -> dict[str, Any]:
    """The error object of a refusal with ``status``: message, type, param and code."""
    require(answer.status == status, f"expected HTTP {status}, got {answer}")
    value = answer.json()
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        raise Violation(f'no {{"error": {{…}}}} but {answer}')
    missing = {"message", "type", "param", "code"} - error.keys()
    require(not missing, f"the error lacks {sorted(missing)}: {error!r}")
    require(isinstance(error["message"], str) and bool(error["message"]), f"no message: {error!r}")
    require(isinstance(error["type"], str), f"type is {error['type']!r}")
    return error
