"""The application on a real Ray cluster of one node, with the bundled model."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import ray
from ray import serve

from bench.stack import ROOT, setting
from deploy.ports import claim_port
from deploy.ray.application import build
from deploy.ray.scaling import QUEUED, RUNNING
from tests.deploy.running import all_dead
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.timeout(240)

NAME = f"ray-test-{os.getpid()}"
SETTINGS = {
    "BATON_DEVICE": "cpu",
    "BATON_ROLE": "colocated",
    "BATON_THREADS": 1,
    "BATON_SERVED_MODEL_NAME": NAME,
}
BODY = {
    "model": NAME,
    "messages": [
        {"role": "user", "content": "Nina has 13 shells. She loses 11 of them. How many?"}
    ],
    "max_tokens": 100,
    "temperature": 0,
}


def processes() -> dict[str, int]:
    """The stack's processes by service."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    ours = [pid for pid in pids if setting(pid, "BATON_SERVED_MODEL_NAME") == NAME]
    return {setting(pid, "BATON_SERVICE_NAME") or f"up {pid}": pid for pid in ours}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Serve kills a proxy that takes longer to start: 5 s are too few for a busy machine.
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
        # Ray's processes are nice to all others: beside other tests they would get no core at all.
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", str(ROOT))
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            log_to_driver=False,
        )
        try:
            port = claim_port("127.0.0.1", 0)
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            serve.run(build({"settings": SETTINGS}), name="baton")
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                yield client
        finally:
            pids = processes()
            ray.shutdown()  # kills: no replica gets to stop its stack
        assert pids.keys() >= {"coordinator", "colocated-1"}
        assert all_dead([*pids.values()], deadline_s=30)


def test_plain_and_streamed_answers_are_passed_on(http: httpx.Client) -> None:
    plain = http.post("/v1/chat/completions", json=BODY).raise_for_status()
    with http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as streamed:
        lines = [line for line in streamed.iter_lines() if line]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 3
    assert plain.headers["x-baton-node"] == streamed.headers["x-baton-node"]
    assert plain.json()["choices"][0]["message"]["content"]


def test_a_record_is_found_by_the_clients_request_id(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json=BODY, headers={"x-request-id": "mine-1"})
    assert answer.headers.get_list("x-request-id") == ["mine-1"]
    record = http.get("/v1/requests/mine-1").raise_for_status().json()
    assert (record["http_id"], record["state"]) == ("mine-1", "finished")
    assert http.get("/v1/requests/unknown").status_code == 404


async def test_a_client_that_leaves_cancels_its_request(http: httpx.Client) -> None:
    body = BODY | {"stream": True, "max_tokens": 3000, "ignore_eos": True}
    headers = {"x-request-id": "left-1"}
    async with httpx.AsyncClient(base_url=http.base_url, timeout=60) as client:
        asked = client.stream("POST", "/v1/chat/completions", json=body, headers=headers)
        async with asked as streamed:
            await anext(streamed.aiter_lines())

        async def cancelled() -> None:
            record = await client.get("/v1/requests/left-1")
            assert record.json().get("state") == "cancelled"

        await eventually(cancelled, "the request is cancelled")


def test_the_nodes_own_errors_are_passed_on(http: httpx.Client) -> None:
    refused = http.post("/v1/chat/completions", json={"model": NAME})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "messages"


def test_rays_hooks_answer(http: httpx.Client, request: pytest.FixtureRequest) -> None:
    nodes = serve.get_deployment_handle("Node", "baton")
    request.addfinalizer(nodes.shutdown)  # else its thread starts another cluster
    assert nodes.broadcast("check_health").results(timeout_s=30) == [None]
    (load,) = nodes.broadcast("record_autoscaling_stats").results(timeout_s=30)
    assert load.keys() == {RUNNING, QUEUED}
    (stats,) = nodes.broadcast("record_routing_stats").results(timeout_s=30)
    assert stats["ready"] is True
