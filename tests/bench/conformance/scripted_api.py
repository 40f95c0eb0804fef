"""The scripted server with tools, forms, thoughts, /v1/responses and /v1/messages."""

import json
from typing import Any

from bench.harness.conformance.anthropic_messages import MESSAGES
from bench.harness.conformance.responses import RESPONSES
from bench.harness.conformance.server import CHAT, COMPLETIONS, Answer
from tests.bench.conformance.scripted import WORDS, Refusal, Scripted

ARGUMENTS = {"add": {"a": 13, "b": 46}, "unit": {"of": "cups"}}
TEXTS = {"regex": "123-ab", "choice": "yes", "grammar": "<ab>"}
THOUGHT = (
    "First the shells that Nina has, then those that she gets, and last those that she loses. " * 3
)
ORIGIN = "https://conformance.example"


class ScriptedApi(Scripted):
    async def options(self, path: str, headers: Any) -> Answer:
        allowed = {"access-control-allow-origin": ORIGIN, "access-control-allow-headers": "*"}
        return Answer(405 if self.breaks("no_preflight_status") else 204, allowed, b"")

    async def post(self, path: str, body: dict[str, Any], headers: Any = None) -> Answer:
        if path == "/chat/completions":
            name = "this" if self.breaks("nameless_path") else path
            return self._refuse(Refusal(404, f"there is no {name}"))
        return await super().post(path, body, headers)

    def _refuse(self, refusal: Refusal) -> Answer:
        if str(refusal) == "of a message" and not self.breaks("openai_errors"):
            error = {"type": "invalid_request_error", "message": str(refusal)}
            return self._json(refusal.status, {"type": "error", "error": error})
        return super()._refuse(refusal)

    def _answer(self, path: str, body: dict[str, Any]) -> Answer:
        if path == RESPONSES:
            return self._response(body)
        if path.startswith(MESSAGES):
            return self._message(path, body)
        if path == COMPLETIONS:
            return self._completion(body)
        return self._chat(body)

    # ---- chats

    def _chat(self, body: dict[str, Any]) -> Answer:
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        choice = body.get("tool_choice", "auto")
        if isinstance(choice, dict):
            names = [name for name in names if name == choice["function"]["name"]]
            if not names and not self.breaks("unknown_tool"):
                raise Refusal(400, "no such tool")
        form = body.get("response_format", {}).get("type", "text")
        if names and choice != "none" and not self.breaks("no_call"):
            parallel = choice == "required" and body.get("parallel_tool_calls", True)
            return self._with_calls(body, names if parallel else names[:1])
        if form != "text" or "structured_outputs" in body:
            return self._with_form(body, form)
        if "reasoning_effort" in body:
            return self._with_thought(body)
        return super()._answer(CHAT, body)

    def _with_calls(self, body: dict[str, Any], names: list[str]) -> Answer:
        calls = [self._call(i, name) for i, name in enumerate(names)]
        if not body.get("stream"):
            return self._whole({"content": None, "tool_calls": calls}, "tool_calls", 9)
        (call,) = calls
        name, text = call["function"]["name"], call["function"]["arguments"]
        deltas = [{**call, "index": 0, "function": {"name": name, "arguments": text[:5]}}]
        again = {"name": name} if self.breaks("name_again") else {}
        deltas.append({"index": 0, "function": {**again, "arguments": text[5:]}})
        return self._chunks([{"tool_calls": [delta]} for delta in deltas], "tool_calls")

    def _call(self, i: int, name: str) -> dict[str, Any]:
        arguments: dict[str, Any] = ARGUMENTS[name]
        if self.breaks("wrong_types"):
            arguments = {key: str(value) for key, value in arguments.items()}
        found = {"name": name, "arguments": json.dumps(arguments)}
        call_id = "call_0" if self.breaks("one_id") else f"call_{i}"
        return {"id": call_id, "type": "function", "function": found}

    def _with_form(self, body: dict[str, Any], form: str) -> Answer:
        outputs = body.get("structured_outputs") or {}
        if "'strange'" in str(body) and not self.breaks("any_schema"):
            raise Refusal(400, "a bad schema")
        amount = json.dumps({"count": 48, "of": "shells"})
        text = next((TEXTS[name] for name in outputs if name in TEXTS), amount)
        if self.breaks("form_ignored"):
            text = "".join(WORDS)
        cut_off = body["max_tokens"] < 5
        reason = "length" if cut_off and not self.breaks("cut_off_stops") else "stop"
        text = text[:5] if cut_off else text
        if body.get("stream"):
            return self._chunks([{"content": text[:5]}, {"content": text[5:]}], reason)
        return self._whole({"content": text}, reason, 9)

    def _with_thought(self, body: dict[str, Any]) -> Answer:
        thinks = body["reasoning_effort"] != "none" or self.breaks("always_thinks")
        shown = body.get("include_reasoning", True) or self.breaks("thought_kept")
        thought = THOUGHT if thinks and shown else ""
        if "thinking_token_budget" in body:
            thought = THOUGHT[1:] if self.breaks("over_budget") else thought[:20]
        message = {"content": "48 shells.", "reasoning_content": thought}
        if self.breaks("think_tags"):
            message = {"content": "</think>48 shells.", "reasoning_content": thought}
        if not body.get("stream"):
            return self._whole(message, "stop", 9)
        deltas = [{key: message[key]} for key in ("reasoning_content", "content")]
        return self._chunks(deltas[::-1] if self.breaks("thought_last") else deltas, "stop")

    def _whole(self, message: dict[str, Any], reason: str, num_tokens: int) -> Answer:
        usage = {
            "prompt_tokens": 9,
            "completion_tokens": num_tokens,
            "total_tokens": 9 + num_tokens,
        }
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
        return self._json(
            200, self._head("chat.completion") | {"choices": [choice], "usage": usage}
        )

    def _chunks(self, deltas: list[dict[str, Any]], reason: str) -> Answer:
        head = self._head("chat.completion.chunk")
        choices: list[dict[str, Any]] = [
            {"index": 0, "delta": delta, "finish_reason": None} for delta in [*deltas, {}]
        ]
        choices[0]["delta"] |= {"role": "assistant"}
        choices[-1]["finish_reason"] = reason
        events = [json.dumps(head | {"choices": [choice]}) for choice in choices]
        body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
        return Answer(200, {"content-type": "text/event-stream"}, body.encode())

    # ---- completions

    def _completion(self, body: dict[str, Any]) -> Answer:
        limit = body.setdefault("max_tokens", 17 if self.breaks("seventeen") else 16)
        scored = "prompt_logprobs" in body
        if limit and not scored:
            return super()._answer(COMPLETIONS, body)
        (ids,) = body["prompt"]
        usage = {"prompt_tokens": len(ids), "completion_tokens": limit,
                 "total_tokens": len(ids) + limit}  # fmt: skip
        scores = [None, *[-0.5] * (len(ids) - 1)]
        found: dict[str, Any] = {"index": 0, "text": "", "finish_reason": "length"}
        found["logprobs"] = {"token_logprobs": scores[: 1 if self.breaks("one_score") else None]}
        entries: list[Any] = [None, *({str(token): {"logprob": -0.5}} for token in ids[1:])]
        if self.breaks("score_of_first"):
            entries[0] = {"40": {"logprob": 0}}
        found["prompt_logprobs"] = entries
        return self._json(200, self._head("text_completion") | {"choices": [found], "usage": usage})

    # ---- /v1/responses

    def _response(self, body: dict[str, Any]) -> Answer:
        past = body.get("previous_response_id", "")
        if body["temperature"] < 0 or not isinstance(body["input"], str | list) or "absent" in past:
            raise Refusal(404 if "absent" in past else 400, "a bad field")
        cut_off = body["max_output_tokens"] < 20
        calls = bool(body.get("tools")) and body["tool_choice"] != "none"
        wanted = body.get("text", {}).get("format")
        text = '{"count": 48}' if wanted and not self.breaks("form_ignored") else "48 shells."
        item: dict[str, Any] = {"type": "message", "id": "msg_1",
                                "content": [{"type": "output_text", "text": text}]}  # fmt: skip
        if calls:
            item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add",
                    "arguments": json.dumps(ARGUMENTS["add"])}  # fmt: skip
        num_input = 9 + 9 * bool(past and not self.breaks("forgets"))
        num_output = 16 if cut_off else 20
        response = {
            **self._head("response"), "created_at": 1, "output": [item],
            "status": "incomplete" if cut_off and not self.breaks("cut_off_stops") else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
            "usage": {"input_tokens": num_input, "output_tokens": num_output,
                      "total_tokens": num_input + num_output},
        }  # fmt: skip
        if not body.get("stream"):
            return self._json(200, response)
        kind = "function_call_arguments" if calls else "output_text"
        value = item["arguments"] if calls else text
        middle: list[tuple[str, dict[str, Any]]] = [
            ("output_item.added", {}),
            ("content_part.added", {}),
            (f"{kind}.delta", {"delta": value}),
            (f"{kind}.done", {}),
            ("content_part.done", {}),
            ("output_item.done", {}),
        ]
        whole = {"response": response}
        events = [("created", whole), *middle, ("completed", whole)]
        step = 2 if self.breaks("sequence") else 1
        return self._events(
            {"type": f"response.{name}", "sequence_number": step * i, **data}
            for i, (name, data) in enumerate(events)
        )

    # ---- /v1/messages

    def _message(self, path: str, body: dict[str, Any]) -> Answer:
        if not body.get("messages") or (path == MESSAGES and "max_tokens" not in body):
            raise Refusal(400, "of a message")
        if path != MESSAGES:
            return self._json(200, {"input_tokens": 8 if self.breaks("wrong_count") else 9})
        words, stop = WORDS[:6], "end_turn"
        if body["max_tokens"] < len(words):
            words, stop = words[: body["max_tokens"]], "max_tokens"
        text = "".join(words)
        for sequence in body.get("stop_sequences", ()):
            text, stop = text.split(sequence)[0], "stop_sequence"
        if self.breaks("end_turn_always"):
            stop = "end_turn"
        block: dict[str, Any] = {"type": "text", "text": text}
        delta = {"type": "text_delta", "text": text}
        if "tools" in body and body["tool_choice"]["type"] != "none":
            value, stop = ARGUMENTS["add"], "tool_use"
            block = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": value}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(value)}
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": self.model,
            "content": [block], "stop_reason": stop,
            "usage": {"input_tokens": 9, "output_tokens": len(words)},
        }  # fmt: skip
        if not body.get("stream"):
            return self._json(200, message)
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": message},
            {"type": "ping"},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": stop}},
            {"type": "message_stop"},
        ]
        return self._events(events[:-1] if self.breaks("no_message_stop") else events)

    def _events(self, events: Any) -> Answer:
        named = "x" if self.breaks("event_names") else ""
        body = "".join(f"event: {e['type']}{named}\ndata: {json.dumps(e)}\n\n" for e in events)
        return Answer(200, {"content-type": "text/event-stream; charset=utf-8"}, body.encode())
