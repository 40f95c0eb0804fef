"""The checks of tools, forms, thoughts, /v1/responses and /v1/messages: each passes on a server
that does all right, and fails where just that is wrong."""

from typing import Any

import pytest

from bench.harness.conformance.anthropic_messages import MESSAGES
from bench.harness.conformance.check import Verdict
from bench.harness.conformance.responses import RESPONSES
from bench.harness.conformance.run import SUITES
from bench.harness.conformance.server import Answer
from tests.bench.conformance.scripted import Refusal
from tests.bench.conformance.scripted_api import ScriptedApi
from tests.bench.conformance.test_checks import IN_MEMORY, missed, results

SHOWN = tuple(name for name in SUITES if name not in ("crowd", "openai"))
EXPECTED = {
    "always_thinks": {"reasoning_effort none: no thought"},
    "any_schema": {"a schema of an unknown type is a 400"},
    "cut_off_stops": {
        "max_output_tokens ends as incomplete", "a form that is cut off ends with length",
    },
    "end_turn_always": {
        "a stop sequence ends the text before it", "max_tokens of a message, to the token",
    },
    "event_names": {
        "the events of a streamed response", "a response calls a function",
        "the events of a streamed message", "a message uses a tool",
    },
    "forgets": {"previous_response_id goes on"},
    "form_ignored": {
        "response_format json_object", "response_format json_schema", "json_schema streamed",
        "json_schema at a high temperature", "structured_outputs: json",
        "structured_outputs: choice", "structured_outputs: regex", "structured_outputs: grammar",
        "text.format json_schema",
    },
    "name_again": {"a call is streamed as deltas"},
    "nameless_path": {"a path without /v1 is a 404 that names it"},
    "no_call": {
        "a named function is called", "required: one call at least",
        "parallel_tool_calls false: one call", "a call is streamed as deltas",
    },
    "no_message_stop": {"the events of a streamed message"},
    "no_preflight_status": {"a browser's preflight request is allowed"},
    "one_id": {"required: one call at least"},
    "one_score": {"echo, logprobs and max_tokens 0: the prompt alone"},
    "openai_errors": {"errors of /v1/messages have their shape"},
    "over_budget": {"thinking_token_budget ends a thought"},
    "score_of_first": {"prompt_logprobs"},
    "sequence": {"the events of a streamed response"},
    "seventeen": {"16 tokens without max_tokens"},
    "think_tags": {"a thought is apart from the answer"},
    "thought_kept": {"include_reasoning false leaves it out"},
    "thought_last": {"a thought is streamed before the answer"},
    "unknown_tool": {"a tool_choice that is no tool is a 400"},
    "wrong_count": {"count_tokens counts what is used"},
    "wrong_types": {
        "required: one call at least", "parallel_tool_calls false: one call",
        "auto: text, or calls that fit", "a call is streamed as deltas",
    },
}  # fmt: skip


def test_a_server_that_does_all_right_passes_all() -> None:
    found = results(ScriptedApi(), *SHOWN)
    assert [(one.check.name, one.detail) for one in found if one.verdict is not Verdict.PASS] == []


@pytest.mark.parametrize("violation", sorted(EXPECTED))
def test_just_what_is_wrong_is_found(violation: str) -> None:
    assert missed(results(ScriptedApi(violation), *SHOWN)) == EXPECTED[violation]


class Older(ScriptedApi):
    """Without the two newest endpoints."""

    def _answer(self, path: str, body: dict[str, Any]) -> Answer:
        if path in (RESPONSES, MESSAGES, f"{MESSAGES}/count_tokens"):
            raise Refusal(404, "no such path")
        return super()._answer(path, body)


@pytest.mark.parametrize("suite", ["responses", "messages"])
def test_an_endpoint_that_is_not_there_is_not_offered(suite: str) -> None:
    assert {one.verdict for one in results(Older(), suite)} == {Verdict.NOT_OFFERED}


def test_what_only_some_servers_do_is_recommended() -> None:
    new = [check for name in SHOWN if name not in IN_MEMORY for check in SUITES[name]]
    assert not any(check.required for check in new)
