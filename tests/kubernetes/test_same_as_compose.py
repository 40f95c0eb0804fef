"""The containers of a pod are set up as docker-compose.yml sets them up: a setting that one of them
gets or changes must be in both."""

import re
from typing import Any

import pytest
import yaml

from tests.kubernetes.rendered import (
    ROOT,
    SETS,
    WORKERS,
    containers,
    environment,
    one,
    role,
    workers,
)

SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
SECRETS = {
    "BATON_REDIS_PASSWORD": "secret:redis-password",
    "REDIS_PASSWORD": "secret:redis-password",
    "BATON_CHANNEL_SECRET": "secret:channel-secret",
    "BATON_API_KEYS": "secret:api-keys",
}
LOOPBACK = {
    "BATON_BIND": "tcp://127.0.0.1:5555",
    "BATON_COORDINATOR": "tcp://127.0.0.1:5555",
    "BATON_REDIS_URL": "redis://127.0.0.1:6379/0",
}
"""Containers of a pod have one loopback address; services have a network."""
OTHERWISE = {
    # A proxy in front has other pods to send a request to.
    "coordinator": {"BATON_BIND": LOOPBACK["BATON_BIND"], "BATON_HAND_OVER": "true"},
    # No worker has a health check that would read the file.
    "worker": {"BATON_STATE_FILE": ""},
}
GPU_DRIVER = "NVIDIA_VISIBLE_DEVICES"
"""Which GPUs a container sees is said by the driver of the claim, or by the device plugin."""


def settings(path: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Z_]+)=(.*)$", (ROOT / path).read_text(), re.MULTILINE))


def composed(service: str, given: dict[str, str]) -> dict[str, str]:
    """The environment of a service, with what .env.example and ``given`` set."""
    known = settings(".env.example") | given
    raw: dict[str, Any] = SERVICES[service]["environment"]
    filled = {
        name: re.sub(r"\$\{([A-Z_]+)[^}]*\}", lambda found: known[found[1]], str(value))
        for name, value in raw.items()
    }
    secret = {name: value for name, value in SECRETS.items() if name in raw}
    return filled | secret | {k: v for k, v in LOOPBACK.items() if k in raw}


def given(name: str) -> dict[str, str]:
    """The settings of .env for the same workers."""
    pools = {f"{r.upper()}_REPLICAS": str(n) for r, n in WORKERS[name].items()}
    cpu = settings("deploy/cpu.env") if name == "cpu-demo" else {}
    return cpu | pools | {"HOST_WORKERS": str(sum(WORKERS[name].values()))}


@pytest.mark.parametrize("name", SETS)
def test_the_coordinator_has_the_same_settings(name: str) -> None:
    expected = composed("coordinator", given(name)) | OTHERWISE["coordinator"]
    assert environment(name, "coordinator") == expected


@pytest.mark.parametrize("name", SETS)
def test_workers_have_the_same_settings(name: str) -> None:
    for container in workers(name):
        expected = composed(role(container), given(name)) | OTHERWISE["worker"]
        found = environment(name, container)
        assert found.pop(GPU_DRIVER, "all") == expected.pop(GPU_DRIVER)
        assert found == expected


@pytest.mark.parametrize("name", SETS)
def test_the_checkpoint_is_checked_with_the_workers_settings(name: str) -> None:
    expected = composed("check-model", given(name))
    found = environment(name, "check-model")
    assert {key: found[key] for key in expected} == expected


def test_redis_is_the_same_but_for_its_address() -> None:
    redis = containers("defaults")["redis"]
    (script,) = SERVICES["redis"]["command"]
    assert redis["command"] == SERVICES["redis"]["entrypoint"]
    script = script.replace("$$", "$").replace("0.0.0.0", "127.0.0.1")
    assert redis["args"][0].strip() == script.strip()
    assert environment("defaults", "redis") == composed("redis", {})


@pytest.mark.parametrize("name", SETS)
def test_images_and_commands_are_the_same(name: str) -> None:
    known = settings(".env.example") | given(name)
    version = known["BATON_VERSION"]
    worker = f"baton-worker:{version}-{known['BATON_VARIANT']}"
    images = {n: c["image"] for n, c in containers(name).items()}
    assert images == {
        "check-model": worker,
        "redis": known["REDIS_IMAGE"],
        **dict.fromkeys(workers(name), worker),
        "coordinator": f"baton-coordinator:{version}",
    }
    for container, spec in containers(name).items():
        if container in (*workers(name), "check-model"):
            service = role(container) if container in workers(name) else container
            assert spec["args"] == SERVICES[service]["command"]


def test_shared_memory_is_as_large() -> None:
    volumes = one("defaults", "Deployment")["spec"]["template"]["spec"]["volumes"]
    (shared,) = [v["emptyDir"] for v in volumes if v["name"] == "shared-memory"]
    size = settings(".env.example")["SHM_SIZE"]
    assert shared == {"medium": "Memory", "sizeLimit": size.replace("g", "Gi")}


@pytest.mark.parametrize("name", SETS)
def test_workers_mount_what_theirs_mount(name: str) -> None:
    """Compose has /tmp as a tmpfs of each container."""
    mounts = [v if isinstance(v, dict) else v.split(":")[-1] for v in SERVICES["decode"]["volumes"]]
    targets = {m["target"] if isinstance(m, dict) else m for m in mounts}
    for container in workers(name).values():
        assert {m["mountPath"] for m in container["volumeMounts"]} == targets | {"/tmp"}
