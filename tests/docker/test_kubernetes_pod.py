"""The CPU demo's pod of deploy/kubernetes answers: its containers run with the rendered commands,
environment, mounts and rights. Probes and restarts, which a kubelet adds, are not run here."""

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
        "api-keys": "test:key-of-sixteen-characters",
    }
    pod = Pod("cpu-demo", images=images, secrets=secrets, model=ROOT / "models" / "tiny")
    try:
        pod.start()
        await pod.ready()
        yield pod
    finally:
        pod.close()


async def test_the_demos_pod_answers_and_ends_in_order(demo: Pod) -> None:
    headers = {"Authorization": "Bearer key-of-sixteen-characters"}
    async with httpx.AsyncClient(base_url=demo.url, timeout=60.0) as http:
        assert (await http.post("/v1/chat/completions", json=question(0))).status_code == 401
        for index in range(NUM_QUESTIONS):
            answer = await http.post("/v1/chat/completions", json=question(index), headers=headers)
            text = answer.raise_for_status().json()["choices"][0]["message"]["content"]
            assert final_number(text) == str(HELDOUT[index]["final"])
        status = (await http.get("/status", headers=headers)).json()
    assert sorted(worker["role"] for worker in status["workers"]) == ["decode", "prefill"]
    seconds = demo.stop()
    assert set(demo.exit_codes().values()) == {0}, demo.exit_codes()
    told.LINES.append(f"pod of Kubernetes: {NUM_QUESTIONS} answers, ended after {seconds:.1f} s")
