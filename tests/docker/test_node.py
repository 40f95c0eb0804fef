"""The compose file's stack under load: scaled, crashed, restarted and stopped. Every request ends
once, and none is lost, as its client, the coordinator's metrics and Redis' records tell alike.

The tests share one stack and come in this order.
"""

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.docker.composed import ROOT, SERVICES, Composed, compose_2
from tests.docker.load import Try, question
from tests.docker.node import Node, went_on
from tests.e2e.problems import HELDOUT, final_number

pytestmark = pytest.mark.timeout(480)

NUM_QUESTIONS = 40
GATE = 0.90


def test_nothing_had_to_start_twice(node: Node) -> None:
    for service in SERVICES:
        for container in node.containers(service):
            assert node.inspect(container, "{{.RestartCount}}") == "0", service


async def test_it_answers_word_problems(node: Node) -> None:
    limit = asyncio.Semaphore(8)
    async with httpx.AsyncClient(base_url=node.url, timeout=60.0) as http:

        async def ask(index: int) -> None:
            this = Try()
            headers = {"X-Request-Id": this.http_id}
            async with limit:
                answer = await http.post(
                    "/v1/chat/completions", json=question(index), headers=headers
                )
            text = answer.raise_for_status().json()["choices"][0]["message"]["content"]
            node.answers[index] = final_number(text)
            this.outcome = "finished"
            node.tries.append(this)

        await asyncio.gather(*map(ask, range(NUM_QUESTIONS)))
    right = [node.answers[i] == str(HELDOUT[i]["final"]) for i in range(NUM_QUESTIONS)]
    assert sum(right) >= GATE * NUM_QUESTIONS, f"{sum(right)} right"
    await node.accounts_agree()


async def test_decode_is_scaled_to_three_and_back(node: Node) -> None:
    others = {name: node.containers(name) for name in ("redis", "coordinator", "prefill")}
    async with node.load() as load:
        await _scale(node, 3)
        await went_on(load, 10)
        await _scale(node, 1)
        await went_on(load, 10)
    assert load.outcomes() == {"finished"}, "nobody is refused while others serve"
    assert {name: node.containers(name) for name in others} == others
    await node.accounts_agree()


async def test_what_crashes_comes_back(node: Node) -> None:
    await _scale(node, 2)
    for service in ("decode", "prefill", "redis"):
        (container, *_) = node.containers(service)
        before = await node.workers()
        async with node.load() as load:
            await asyncio.to_thread(node.crash, container)
            await went_on(load, 8)
            fallen = before if service != "redis" else ()
            await node.ready(decode=2, instead_of=frozenset(fallen))
        assert int(node.inspect(container, "{{.RestartCount}}")) == 1
        # Without the only prefill worker decode workers compute prompts; none waits for Redis.
        assert load.outcomes() == {"finished"}
        alive = await node.workers()
        assert len(before - alive) == (service != "redis")
        assert node.segments() == {f"baton-{instance}" for instance in alive}
        await node.accounts_agree()


async def test_workers_restarted_one_by_one_refuse_nothing(node: Node) -> None:
    async with node.load() as load:
        for container in node.containers("decode"):
            before = await node.workers()
            await asyncio.to_thread(node.docker, "restart", container)
            await node.ready(decode=2)
            assert len(before - await node.workers()) == 1
            await went_on(load, 4)
    assert load.outcomes() == {"finished"}
    await _scale(node, 1)
    await node.accounts_agree()


@pytest.mark.parametrize("service", ["redis", "decode", "prefill", "coordinator"])
async def test_a_service_is_recreated_under_load(node: Node, service: str) -> None:
    (before,) = node.containers(service)
    async with node.load() as load:
        recreate = ("up", "-d", "--no-deps", "--force-recreate", service)
        await asyncio.to_thread(node.compose, *recreate)
        await node.ready()
        await went_on(load, 8)
    assert node.containers(service) != [before]
    await node.accounts_agree(new_coordinator=service == "coordinator")


async def test_stop_finishes_what_runs(node: Node) -> None:
    async with node.load() as load:
        node.measures["stop_under_load_s"] = await node.stop()
        assert node.exit_codes() == {name: ["0"] for name in SERVICES}
        await node.up()
        await went_on(load, 8)
    await node.accounts_agree(new_coordinator=True)
    node.measures["requests_finished"] = sum(t.outcome == "finished" for t in node.tries)
    node.measures["stop_s"] = await node.stop()


async def _scale(node: Node, decode: int) -> None:
    await asyncio.to_thread(node.compose, "up", "-d", "--scale", f"decode={decode}")
    await node.ready(decode=decode)


async def test_what_an_operator_does_first_with_compose_2(node: Node, tmp_path: Path) -> None:
    """By then the images are built and the stack above is stopped."""
    if not (found := compose_2()):
        pytest.skip("no compose 2; see tests/docker/engine.sh")
    model = _hugging_face_cache(tmp_path)
    composed = Composed(found[0])
    try:
        said = composed.refused("up", "-d", MODEL_DIR=str(model / "snapshots" / "0123abcd"))
        assert "check-model" in said
        said = composed.compose("logs", "check-model")
        assert said.count("error: MODEL_DIR: ") == 1
        assert "the model's whole folder (models--ORG--NAME)" in said
        said = composed.refused("up", "-d", MODEL_DIR=str(tmp_path / "mistyped"))
        assert f"does not exist: {tmp_path}/mistyped" in said
        assert not (tmp_path / "mistyped").exists()
        composed.change(MODEL_DIR=str(model))

        await asyncio.to_thread(composed.compose, "up", "-d", "--build")
        before = {name: composed.containers(name) for name in SERVICES}
        await asyncio.to_thread(composed.compose, "up", "-d", "--scale", "decode=2")
        await composed.ready(decode=2)
        after = {name: composed.containers(name) for name in SERVICES}
        assert set(before.pop("decode")) < set(after.pop("decode"))
        assert after == before, "nothing is recreated"

        composed.change(PREFILL_REPLICAS="0", DECODE_REPLICAS="0", COLOCATED_REPLICAS="1")
        await asyncio.to_thread(composed.compose, "up", "-d")
        await composed.ready(prefill=0, decode=0, colocated=1)
    finally:
        composed.close()


def _hugging_face_cache(folder: Path) -> Path:
    """The bundled model as huggingface_hub lays one out: its files are links into blobs/."""
    model = folder / "models--Some--Tiny"
    snapshot = model / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    for name in ("blobs", "refs"):
        (model / name).mkdir()
    (model / "refs" / "main").write_text("0123abcd")
    for number, source in enumerate(sorted((ROOT / "models" / "tiny").iterdir())):
        (model / "blobs" / f"{number}").write_bytes(source.read_bytes())
        (snapshot / source.name).symlink_to(f"../../blobs/{number}")
    return model
