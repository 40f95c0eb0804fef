"""What a pod of Baton must have: how it starts, ends, sees its GPUs and is reached."""

import re

import pytest
import yaml

from telemetry.metrics import Metrics
from tests.kubernetes.rendered import (
    MANIFESTS,
    ROOT,
    SETS,
    WORKERS,
    containers,
    documents,
    environment,
    one,
    pod,
    role,
    workers,
)

AFTER_DRAIN_S = 20
"""For the workers and Redis, which end after the coordinator."""
GPU = "nvidia.com/gpu"
UID = 10001


def test_every_folder_that_can_be_applied_is_tested() -> None:
    folders = {path.parent.name for path in MANIFESTS.glob("*/kustomization.yaml")}
    assert folders == {*SETS, "base"}


@pytest.mark.parametrize("name", SETS)
def test_a_pod_has_its_workers(name: str) -> None:
    roles = [role(container) for container in workers(name)]
    assert {r: roles.count(r) for r in roles} == WORKERS[name]
    assert environment(name, "check-model")["BATON_HOST_WORKERS"] == str(len(roles))


@pytest.mark.parametrize("name", SETS)
def test_the_coordinator_ends_first_and_redis_last(name: str) -> None:
    """Kubernetes ends sidecars after the containers, the last one first."""
    sidecars = [c for c in pod(name)["initContainers"] if c.get("restartPolicy") == "Always"]
    assert [c["name"] for c in pod(name)["initContainers"]][:2] == ["check-model", "redis"]
    assert [c["name"] for c in sidecars] == ["redis", *workers(name)]
    assert [c["name"] for c in pod(name)["containers"]] == ["coordinator"]


@pytest.mark.parametrize("name", SETS)
def test_a_drain_fits_into_the_grace_period(name: str) -> None:
    (coordinator,) = pod(name)["containers"]
    before = coordinator["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = int(environment(name, "coordinator")["BATON_DRAIN_TIMEOUT"])
    assert before + drain + AFTER_DRAIN_S <= pod(name)["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", SETS)
def test_no_sidecar_holds_up_the_next(name: str) -> None:
    """A worker is ready only with a coordinator, which starts after it."""
    for container in pod(name)["initContainers"]:
        assert not {"startupProbe", "readinessProbe", "livenessProbe"} & set(container)


def test_the_coordinator_is_asked_for_health_and_readiness() -> None:
    (coordinator,) = pod("defaults")["containers"]
    paths = {
        probe: coordinator[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready",
    }  # fmt: skip


@pytest.mark.parametrize("name", SETS)
def test_what_a_handoff_needs_is_shared(name: str) -> None:
    assert pod(name)["shareProcessNamespace"] is True
    volumes = {v["name"] for v in pod(name)["volumes"]}
    for container in workers(name).values():
        mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
        assert mounts["/dev/shm"] == "shared-memory"
        assert mounts["/var/lib/baton/gpus"] == "gpu-locks"
        assert set(mounts.values()) <= volumes


@pytest.mark.parametrize("name", SETS)
def test_no_service_overwrites_a_setting(name: str) -> None:
    """Links would set BATON_PORT to the address of the Service."""
    assert pod(name)["enableServiceLinks"] is False


@pytest.mark.parametrize("name", ["defaults", "eight-h200"])
def test_all_workers_see_the_pods_gpus_by_one_claim(name: str) -> None:
    (claim,) = pod(name)["resourceClaims"]
    template = one(name, "ResourceClaimTemplate", claim["resourceClaimTemplateName"])
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == sum(WORKERS[name].values())
    for container in workers(name).values():
        assert container["resources"]["claims"] == [{"name": claim["name"]}]
        assert "limits" not in container["resources"]


@pytest.mark.parametrize(
    ("name", "num_gpus"), [("one-gpu", 1), ("eight-gpus-by-plugin", 8), ("cpu-demo", 0)]
)
def test_without_a_claim_gpus_are_those_of_the_device_plugin(name: str, num_gpus: int) -> None:
    asked = [c["resources"].get("limits", {}).get(GPU, 0) for c in workers(name).values()]
    assert sum(asked) == num_gpus
    assert "resourceClaims" not in pod(name)
    seen = {environment(name, c).get("NVIDIA_VISIBLE_DEVICES") for c in workers(name)}
    assert seen == {"all" if num_gpus > 1 else None}


@pytest.mark.parametrize("name", SETS)
def test_a_container_can_do_no_more_than_it_needs(name: str) -> None:
    assert pod(name)["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": UID, "runAsGroup": UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    assert pod(name)["automountServiceAccountToken"] is False
    for container in containers(name).values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }


@pytest.mark.parametrize("image", ["coordinator", "worker"])
def test_containers_have_the_user_of_their_image(image: str) -> None:
    recipe = (ROOT / f"deploy/images/{image}.Dockerfile").read_text()
    assert re.findall(r"useradd --uid (\d+)", recipe) == [str(UID)]


@pytest.mark.parametrize("name", SETS)
def test_no_secret_is_in_a_manifest(name: str) -> None:
    assert not [d for d in documents(name) if d["kind"] == "Secret"]
    named = re.compile("PASSWORD|SECRET|API_KEY")
    for container in containers(name):
        for variable, value in environment(name, container).items():
            assert value.startswith("secret:") == bool(named.search(variable)), variable


@pytest.mark.parametrize("name", SETS)
def test_what_selects_pods_selects_batons_alone(name: str) -> None:
    labels = {"app.kubernetes.io/name": "baton"}
    assert one(name, "Deployment")["spec"]["template"]["metadata"]["labels"] == labels
    assert one(name, "Service")["spec"]["selector"] == labels
    assert one(name, "Service")["metadata"]["labels"] == labels
    for kind in ("PodDisruptionBudget", "Deployment"):
        assert one(name, kind)["spec"]["selector"]["matchLabels"] == labels
    assert one(name, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels


def test_the_pool_the_monitor_and_the_autoscaler_find_the_pods() -> None:
    name, labels = "eight-h200", {"app.kubernetes.io/name": "baton"}
    pool = one(name, "InferencePool")["spec"]
    assert pool["selector"]["matchLabels"] == labels
    (coordinator,) = pod(name)["containers"]
    assert pool["targetPorts"] == [{"number": p["containerPort"]} for p in coordinator["ports"]]
    assert one(name, "ServiceMonitor")["spec"]["selector"]["matchLabels"] == labels
    assert one(name, "ScaledObject")["spec"]["scaleTargetRef"] == {"name": "baton"}
    picker = one(name, "Service", pool["endpointPickerRef"]["name"])["spec"]
    assert picker["ports"][0]["port"] == pool["endpointPickerRef"]["port"]["number"]
    running = one(name, "Deployment", "baton-picker")["spec"]["template"]
    assert picker["selector"] == running["metadata"]["labels"] != labels


def test_every_metric_that_is_read_is_exported() -> None:
    exported = set(re.findall(r"^([a-z:_]+)", Metrics("baton").render().decode(), re.MULTILINE))
    triggers = one("eight-h200", "ScaledObject")["spec"]["triggers"]
    read = set(re.findall(r"baton_\w+", str([t["metadata"]["query"] for t in triggers])))
    config = (MANIFESTS / "components/inference-pool/picker-config.yaml").read_text()
    read |= set(re.findall(r"vllm:\w+", config))
    assert {"baton_requests_queued", "vllm:kv_cache_usage_perc"} < read <= exported


def test_the_picker_counts_in_pages() -> None:
    config = yaml.safe_load(
        (MANIFESTS / "components/inference-pool/picker-config.yaml").read_text()
    )
    (prefixes,) = [p for p in config["plugins"] if p["type"] == "approx-prefix-cache-producer"]
    assert prefixes["parameters"]["blockSizeTokens"] == 64
