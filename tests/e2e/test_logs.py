"""One request followed by its id through the logs of every service of a real stack."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.conftest import ending_well
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.waiting import eventually

MODEL = "sharded"
KEY = "sk-only-this-test-knows-0123"
SECRET = "a secret that only this test knows, 0123456789"
PROMPT = "the words of a prompt belong to nobody's log"
LEGS = {
    "split": {
        "coordinator": ["accepted", "ended", "POST /v1/completions"],
        "prefill-1": ["prefilled"],
        "decode-1": ["landed", "decoded"],
    },
    "colocated": {
        "coordinator": ["accepted", "ended", "POST /v1/completions"],
        "colocated-1": ["prefilled", "decoded"],
    },
}


@pytest.fixture(params=["split", "colocated"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    stack = Stack(
        served(MODEL), "--role", request.param, heartbeat=0.25, page_size=16, num_pages=256,
        log_json=True, log_level="debug", api_keys=f"me:{KEY}", channel_secret=SECRET,
    )  # fmt: skip
    stack.role = request.param  # type: ignore[attr-defined]
    with ending_well(stack):
        yield stack
    assert not [secret for secret in (KEY, SECRET, PROMPT) if secret in stack.text]


def lines_about(stack: Stack, http_id: str) -> dict[str, list[dict]]:
    """Each service's log lines that carry the id, in order; every line must be JSON."""
    found: dict[str, list[dict]] = {}
    for name, line in re.findall(r"^(\w+(?:-\d)?) \| (\{.*)$", stack.text, re.MULTILINE):
        told = json.loads(line)
        assert {"ts", "level", "service", "logger", "message"} <= told.keys()
        if told.get("http_id") == http_id:
            found.setdefault(name, []).append(told)
    return found


async def test_a_request_is_followed_by_its_id_through_all_services(stack: Stack) -> None:
    legs = LEGS[stack.role]  # type: ignore[attr-defined]
    headers = {"authorization": f"Bearer {KEY}"}
    bodies = {}
    async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=30.0) as http:
        for http_id in ("follow-me", "another"):
            answer = await http.post(
                "/v1/completions",
                headers={"x-request-id": http_id},
                json={"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "ignore_eos": True},
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-request-id"] == http_id
            bodies[http_id] = answer.json()

    async def all_there() -> None:
        for http_id, body in bodies.items():
            found = lines_about(stack, http_id)
            messages = {name: [line["message"] for line in found[name]] for name in found}
            assert messages == legs
            told = [line for lines in found.values() for line in lines if "request_id" in line]
            assert len({line["request_id"] for line in told}) == 1
            assert body["id"] == f"cmpl-{http_id}"
            (end,) = [line for line in told if line["level"] != "debug"]
            assert (end["message"], end["key"]) == ("ended", "me"), "one line a request at INFO"
            assert (end["state"], end["reason"], end["output_len"]) == ("finished", "length", 6)

    await eventually(all_there, "every service's lines about both requests")
