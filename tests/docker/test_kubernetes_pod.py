"""The CPU demo's pod of deploy/kubernetes answers: its containers run with the rendered commands,
environment, mounts and rights. Probes and restarts, which a kubelet adds, are not run here."""

import asyncio
import json
from collections.abc import AsyncIterator
from secrets import token_hex

import httpx
import pytest

from tests import told
from tests.docker.composed import ROOT, Composed, environment, missing
from tests.docker.load import question
from tests.docker.pod import Pod
from tests.e2e.problems import HELDOUT, final_number
from tests.kubernetes.rendered import containers

pytestmark = pytest.mark.timeout(480)

NUM_QUESTIONS = 4
NUM_LONG = 300
KEY = "key-of-sixteen-characters"


@pytest.fixture
async def demo() -> AsyncIterator[Pod]:
    if reason := missing():
        told.LINES.append(f"pod of Kubernetes: not run: {reason}")
        pytest.skip(reason)
    built = Composed()
    built.build()
    wanted = {spec["image"] for spec in containers("cpu-demo").values()}
    images = {
        image: built.setting("REDIS_IMAGE")
        if image.startswith("redis:")
        else built.image(image.removeprefix("baton-").partition(":")[0])
        for image in wanted
    }
    secrets = {
        "redis-password": environment()["REDIS_PASSWORD"],
        "channel-secret": token_hex(32),
        "api-keys": f"test:{KEY}",
    }
    pod = Pod("cpu-demo", images=images, secrets=secrets, model=ROOT / "models" / "tiny")
    try:
        pod.start()
        await pod.ready()
        yield pod
    finally:
        pod.close()


async def test_the_demos_pod_answers_and_finishes_a_stream_when_it_ends(demo: Pod) -> None:
    """The coordinator gets SIGTERM first and drains while the workers run."""
    async with httpx.AsyncClient(base_url=demo.url, timeout=60.0) as http:
        assert (await http.post("/v1/chat/completions", json=question(0))).status_code == 401
        http.headers["Authorization"] = f"Bearer {KEY}"
        for index in range(NUM_QUESTIONS):
            answer = await http.post("/v1/chat/completions", json=question(index))
            text = answer.raise_for_status().json()["choices"][0]["message"]["content"]
            assert final_number(text) == str(HELDOUT[index]["final"])
        workers = (await http.get("/status")).json()["workers"]
        assert sorted(worker["role"] for worker in workers) == ["decode", "prefill"]
        body = {"model": "baton", "prompt": "Nina has", "max_tokens": NUM_LONG, "stream": True}
        body |= {"ignore_eos": True, "return_token_ids": True}
        async with http.stream("POST", "/v1/completions", json=body) as stream:
            events = (line async for line in stream.aiter_lines() if line.startswith("data: "))
            read = [await anext(events)]
            ending = asyncio.create_task(asyncio.to_thread(demo.stop))
            read += [event async for event in events]
    assert read.pop() == "data: [DONE]"
    tokens = [json.loads(event.removeprefix("data: "))["choices"][0]["token_ids"] for event in read]
    assert sum(map(len, tokens)) == NUM_LONG
    seconds = await ending
    assert set(demo.exit_codes().values()) == {0}, demo.exit_codes()
    log = demo.logs("coordinator")
    assert log.index("draining") < log.rindex(" ended "), "the stream was over before SIGTERM"
    told.LINES.append(
        f"pod of Kubernetes: {NUM_QUESTIONS} answers, and a stream of {NUM_LONG} tokens beside its "
        f"end, which took {seconds:.1f} s"
    )
