"""Every check passes on a server that does all right, and fails where just that is wrong."""

import asyncio

import pytest

from bench.harness.conformance.check import Verdict
from bench.harness.conformance.run import SUITES, Report, Result, run
from tests.bench.conformance.scripted import Scripted
from tests.bench.conformance.scripted_api import ScriptedApi

IN_MEMORY = ("service", "chat", "stream", "completions", "errors")

EXPECTED = {
    "think": {"no <think> in the answer", "no <think> in a stream"},
    "one_too_many": {
        "max_tokens ends with length, to the token",
        "max_completion_tokens does the same",
        "include_usage gives usage in the last chunk",
        "a completion has its shape",
        "16 tokens without max_tokens",
        "echo with logprobs of the prompt",
    },
    "stop_kept": {"a stop string ends the text before it", "a stop string never shows in a stream"},
    "seedless": {"the same seed gives the same text"},
    "request_id": {"X-Request-Id comes back"},
    "no_role": {"the first chunk carries the role"},
    "comment": {
        "only data lines, [DONE] last", "a streamed completion never starts empty",
    },
    "no_done": {"only data lines, [DONE] last", "a streamed completion never starts empty"},
    "not_sse": {"a stream's chunks have their shape"},
    "usage_unasked": {"no empty choices unless usage is asked for"},
    "no_usage_chunk": {"include_usage gives usage in the last chunk"},
    "finish_twice": {"one finish reason, in the last chunk"},
    "one_piece": {"text comes while it is generated"},
    "empty_first": {"a streamed completion never starts empty"},
    "any_model": {"a model that is not there is a 404"},
    "422": {
        "a body that is not JSON is a 400",
        "a field of a wrong type is a 400",
        "a field out of its range is a 400",
        "messages missing or empty is a 400",
        "a prompt longer than the context is a 400",
        "a refusal is short and repeats little",
        "a streamed request is refused before its stream",
    },
}  # fmt: skip


def results(server: Scripted, *suites: str) -> list[Result]:
    return asyncio.run(run(server, suites=suites or IN_MEMORY, limit_s=10.0))


def missed(found: list[Result]) -> set[str]:
    return {one.check.name for one in found if one.verdict is not Verdict.PASS}


def test_a_server_that_does_all_right_passes_all() -> None:
    found = results(ScriptedApi())
    assert [(one.check.name, one.detail) for one in found if one.verdict is not Verdict.PASS] == []
    assert len(found) == sum(len(SUITES[name]) for name in IN_MEMORY)


@pytest.mark.parametrize("violation", sorted(EXPECTED))
def test_just_what_is_wrong_is_found(violation: str) -> None:
    assert missed(results(ScriptedApi(violation))) == EXPECTED[violation]


def test_errors_of_another_shape_fail_every_check_of_errors() -> None:
    names = {check.name for check in SUITES["errors"]}
    assert names <= missed(results(Scripted("bare_error"), "errors"))


def test_64_at_once_must_each_have_a_stream_of_their_own() -> None:
    name = "64 at once, none lost, none mixed up"
    assert name not in missed(results(Scripted(), "crowd"))
    for violation in ("empty_stream_text", "same_id", "no_done"):
        assert name in missed(results(Scripted(violation), "crowd"))


def test_only_required_checks_decide() -> None:
    lenient = Report(results(ScriptedApi("seedless")))
    assert lenient.problems() == []
    assert lenient.headline()["fail"] == 1
    strict = Report(results(ScriptedApi("no_role")))
    (problem,) = strict.problems()
    assert problem.startswith("stream: the first chunk carries the role: fail: ")


def test_every_check_names_itself_once() -> None:
    names = [check.name for suite in SUITES.values() for check in suite]
    assert len(set(names)) == len(names)
    assert any(check.required for suite in SUITES.values() for check in suite)
