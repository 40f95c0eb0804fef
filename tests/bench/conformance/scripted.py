"""A small server that does everything right, or just one thing wrong: ``Scripted(violation)``.

Its tokens are words. It answers every chat with the same text, shuffled by the seed at a
temperature above 0.
"""

import json
import random
from typing import Any

from bench.harness.conformance.server import CHAT, COMPLETIONS, Answer, Server

TEXT = (
    "First we count the shells that Nina has and then add those from Diana before we take away "
    "what she loses so in the end the number of shells that remain with Nina is forty eight"
)
WORDS = [f"{word} " for word in TEXT.split()]
MAX_LEN = 64


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Scripted(Server):
    """Answers in memory; ``violation`` names what it does wrong."""

    def __init__(self, violation: str = "") -> None:
        super().__init__(client=None, model="scripted")  # type: ignore[arg-type]
        object.__setattr__(self, "violation", violation)
        object.__setattr__(self, "counted", 0)

    def breaks(self, violation: str) -> bool:
        return bool(self.__dict__["violation"] == violation)

    async def get(self, path: str) -> Answer:
        entry = {"id": "scripted", "object": "model", "created": 1, "owned_by": "me"}
        entry["max_model_len"] = MAX_LEN  # type: ignore[assignment]
        if path == "/v1/models":
            return self._json(200, {"object": "list", "data": [entry]})
        if path == "/v1/models/scripted":
            return self._json(200, entry)
        if path in ("/health", "/ready"):
            return Answer(200, {}, b"ok")
        return self._refuse(Refusal(405 if path == COMPLETIONS else 404, "no such path"))

    async def post(self, path: str, body: dict[str, Any], headers: Any = None) -> Answer:
        try:
            found = self._answer(path, {"model": self.model, **body})
        except Refusal as refusal:
            found = self._refuse(refusal)
        sent = (headers or {}).get("X-Request-Id", "none")
        echoed = "other" if self.breaks("request_id") else sent
        return Answer(found.status, {**found.headers, "x-request-id": echoed}, found.body)

    async def send(self, path: str, content: bytes, headers: Any = None) -> Answer:
        return self._refuse(Refusal(400, "not JSON"))

    def _refuse(self, refusal: Refusal) -> Answer:
        status = 422 if refusal.status == 400 and self.breaks("422") else refusal.status
        if self.breaks("bare_error"):
            return self._json(status, {"detail": str(refusal)})
        error = {"message": str(refusal), "type": "invalid", "param": None, "code": None}
        return self._json(status, {"error": error})

    def _json(self, status: int, value: Any) -> Answer:
        return Answer(status, {"content-type": "application/json"}, json.dumps(value).encode())

    def _answer(self, path: str, body: dict[str, Any]) -> Answer:
        if body["model"] != self.model and not self.breaks("any_model"):
            raise Refusal(404, "no such model")
        self._check(path, body)
        prompts = body.get("prompt", "x")
        if not isinstance(prompts, list) or isinstance(prompts[0], int):
            prompts = [prompts]
        outputs = [self._words(body) for _ in range(max(len(prompts), body.get("n", 1)))]
        num_prompt = sum(len(p) if isinstance(p, list) else len(p.split()) for p in prompts)
        num_output = sum(len(words) for words, _ in outputs)
        usage = {"prompt_tokens": num_prompt, "completion_tokens": num_output,
                 "total_tokens": num_prompt + num_output}  # fmt: skip
        if body.get("stream"):
            return self._stream(path, body, outputs[0], usage)
        choices = [
            self._choice(path, i, words, reason, body, prompts[i % len(prompts)])
            for i, (words, reason) in enumerate(outputs)
        ]
        kind = "chat.completion" if path == CHAT else "text_completion"
        return self._json(200, self._head(kind) | {"choices": choices, "usage": usage})

    def _check(self, path: str, body: dict[str, Any]) -> None:
        prompt = body.get("prompt", "")
        wrong = (
            not isinstance(body.get("temperature", 0), int | float)
            or not 0 <= body.get("temperature", 0) <= 2
            or not 0 <= body.get("top_p", 1) <= 1
            or body.get("max_tokens", 1) < 1
            or body.get("n", 1) < 1
            or (
                path == CHAT
                and (not isinstance(body.get("messages"), list) or not body["messages"])
            )
            or not isinstance(prompt, str | list)
            or len(prompt) > MAX_LEN
        )
        if wrong:
            raise Refusal(400, "a bad field")

    def _words(self, body: dict[str, Any]) -> tuple[list[str], str]:
        words = list(WORDS)
        if self.breaks("think"):
            words[0] = "<think>" + words[0]
        if body.get("temperature", 0) > 0:
            seed = None if self.breaks("seedless") else body.get("seed")
            random.Random(seed).shuffle(words)
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or len(words)
        reason = "length" if limit < len(words) else "stop"
        words = words[: limit + self.breaks("one_too_many")]
        stops = body.get("stop") or []
        for stop in [stops] if isinstance(stops, str) else stops:
            before, found, _ = "".join(words).partition(stop)
            if found:
                kept = before + stop if self.breaks("stop_kept") else before
                words, reason = [word + " " for word in kept.split(" ")], "stop"
                words[-1] = words[-1][:-1]
        return words, reason

    def _head(self, kind: str) -> dict[str, Any]:
        self.__dict__["counted"] += 1
        number = 1 if self.breaks("same_id") else self.__dict__["counted"]
        return {"id": f"id-{number}", "object": kind, "created": 1, "model": self.model}

    def _choice(
        self,
        path: str,
        index: int,
        words: list[str],
        reason: str,
        body: dict[str, Any],
        prompt: Any,
    ) -> dict[str, Any]:
        text = "".join(words)
        found: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
        if path == CHAT:
            scored = [
                {"logprob": -0.5, "bytes": list(word.encode()),
                 "top_logprobs": [{"logprob": -0.5}, {"logprob": -1.5}]}
                for word in words
            ]  # fmt: skip
            scores = {"content": scored} if body.get("logprobs") else None
            return found | {"message": {"role": "assistant", "content": text}, "logprobs": scores}
        num = len(words)
        if body.get("echo"):
            text = prompt + text if isinstance(prompt, str) else text
            num += len(prompt) if isinstance(prompt, list) else 0
        if body.get("logprobs"):
            scores_of = [None, *[-0.5] * (num - 1)] if body.get("echo") else [-0.5] * num
            found["logprobs"] = {"tokens": words, "token_logprobs": scores_of,
                                 "top_logprobs": [{}] * num, "text_offset": [0] * num}  # fmt: skip
        return found | {"text": text}

    def _stream(
        self, path: str, body: dict[str, Any], output: tuple[list[str], str], usage: dict[str, int]
    ) -> Answer:
        words, reason = output
        if self.breaks("one_piece"):
            words = ["".join(words)]
        if self.breaks("empty_stream_text"):
            words = [""]
        kind = "chat.completion.chunk" if path == CHAT else "text_completion"
        head = self._head(kind)
        pieces: list[dict[str, Any]] = []
        if path == COMPLETIONS and self.breaks("empty_first"):
            pieces.append({"text": ""})
        elif path == CHAT:
            role = {} if self.breaks("no_role") else {"role": "assistant"}
            pieces.append({"delta": role | {"content": ""}})
        pieces += [{"delta": {"content": w}} if path == CHAT else {"text": w} for w in words]
        chunks = [
            head | {"choices": [{"index": 0, "finish_reason": None, **piece}]} for piece in pieces
        ]
        chunks[-1]["choices"][0]["finish_reason"] = reason
        if self.breaks("finish_twice"):
            chunks[-2]["choices"][0]["finish_reason"] = reason
        asked = bool((body.get("stream_options") or {}).get("include_usage"))
        if (asked and not self.breaks("no_usage_chunk")) or self.breaks("usage_unasked"):
            chunks.append(head | {"choices": [], "usage": usage})
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        if self.breaks("comment"):
            events.insert(1, ": ping\n\n")
        if not self.breaks("no_done"):
            events.append("data: [DONE]\n\n")
        kind = "text/plain" if self.breaks("not_sse") else "text/event-stream; charset=utf-8"
        return Answer(200, {"content-type": kind}, "".join(events).encode())
