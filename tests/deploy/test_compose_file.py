"""The compose file and what explains it: every setting is in .env.example, and no other is."""

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from decode.spread_policy import DEFAULT

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
SERVICES = yaml.safe_load(COMPOSE)["services"]
EXAMPLE = (ROOT / ".env.example").read_text()

requirements = runpy.run_path(str(ROOT / "deploy/images/requirements.py"))["requirements"]


def test_every_setting_is_explained() -> None:
    used = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", COMPOSE))
    explained = set(re.findall(r"^([A-Z_]+)=", EXAMPLE, re.MULTILINE))
    assert used == explained


def test_the_defaults_are_the_examples() -> None:
    defaults = dict(re.findall(r"(?<!\$)\$\{([A-Z_]+):-([^}]+)\}", COMPOSE))
    example = dict(re.findall(r"^([A-Z_]+)=(.*)$", EXAMPLE, re.MULTILINE))
    assert {name: example[name] for name in defaults} == defaults


def test_spread_steps_are_on_or_off_by_default_wherever_baton_is_started() -> None:
    workers = (ROOT / "deploy/kubernetes/base/workers.env").read_text()
    for text in (EXAMPLE, workers):
        assert re.findall(r"^BATON_SPREAD=(.*)$", text, re.MULTILINE) == [DEFAULT]


@pytest.mark.parametrize("name", ["prefill", "decode", "colocated"])
def test_workers_can_open_each_others_memory(name: str) -> None:
    """CUDA IPC goes by process numbers, and records of spread steps are files in /dev/shm."""
    service = SERVICES[name]
    assert service["pid"] == "${WORKER_PID_MODE:-host}"
    (shared,) = [v for v in service["volumes"] if "/dev/shm" in str(v)]
    assert (shared["type"], shared["source"]) == ("volume", "shared-memory")


@pytest.mark.parametrize("name", ["REDIS_PASSWORD", "BATON_CHANNEL_SECRET"])
def test_a_secret_has_no_default(name: str) -> None:
    assert re.search(rf"^{name}=$", EXAMPLE, re.MULTILINE)
    assert set(re.findall(rf"\$\{{{name}(.)", COMPOSE)) == {":"}
    assert f"${{{name}:-" not in COMPOSE


def test_only_the_coordinator_publishes_a_port_and_grafana_to_its_host_alone() -> None:
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}
    assert published == {
        "coordinator": ["${PUBLISH:-127.0.0.1:8000}:8000"],
        "grafana": ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"],
    }
    assert COMPOSE.count("ports:") == 2
    assert "privileged" not in COMPOSE


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_do_no_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True


@pytest.mark.parametrize("name", ["grafana", "alertmanager"])
def test_what_observes_reaches_neither_redis_nor_workers(name: str) -> None:
    assert "inside" not in SERVICES[name]["networks"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://hooks.example/T0?a=1&b=$(id)", ""),
        ("", "is no URL of http or https; set it to where alerts are sent"),
        ("hooks.example", "is no URL of http or https; set it to where alerts are sent"),
        ("http://hooks.example/'", "has a single quote"),
    ],
)
def test_alertmanager_sends_to_the_webhook_that_is_given(
    tmp_path: Path, url: str, problem: str
) -> None:
    service = SERVICES["alertmanager"]
    (script,) = service["command"]
    written = tmp_path / "alertmanager.yml"
    for there, here in (
        ("$$", "$"),
        ("/etc/alertmanager/stub.yml", str(ROOT / "deploy/observe/alertmanager.yml")),
        ("/tmp/alertmanager.yml", str(written)),
        ("exec /bin/alertmanager", "exec true"),
    ):
        script = script.replace(there, here)
    done = subprocess.run(
        [*service["entrypoint"], script],
        env={"ALERT_WEBHOOK_URL": url}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = f"error: ALERT_WEBHOOK_URL: {problem}\n" if problem else ""
    assert (done.returncode, done.stderr) == (2 if problem else 0, said)
    if problem:
        return
    config = yaml.safe_load(written.read_text())
    (receiver,) = config["receivers"]
    assert receiver == {"name": config["route"]["receiver"], "webhook_configs": [{"url": url}]}
    if amtool := shutil.which("amtool"):
        subprocess.run([amtool, "check-config", written], check=True, capture_output=True)


@pytest.mark.parametrize(("password", "code"), [("", 2), ("given", 0)])
def test_grafana_does_not_start_without_a_password(password: str, code: int) -> None:
    (script,) = SERVICES["grafana"]["command"]
    script = script.replace("$$", "$").replace("exec /run.sh", "exit 0")
    done = subprocess.run(
        [*SERVICES["grafana"]["entrypoint"], script],
        env={"GF_SECURITY_ADMIN_PASSWORD": password}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code
    assert ("GRAFANA_PASSWORD" in done.stderr) == (code == 2)


@pytest.mark.parametrize("name", ["check-model", "coordinator", "prefill", "decode", "colocated"])
def test_a_model_folder_that_does_not_exist_is_not_made(name: str) -> None:
    """The short form, SOURCE:TARGET, makes an empty folder of it."""
    (model,) = [v for v in SERVICES[name]["volumes"] if "/model" in str(v)]
    assert (model["type"], model["read_only"]) == ("bind", True)


def test_the_coordinators_image_has_no_torch() -> None:
    texts = [(ROOT / each).read_text() for each in ("pyproject.toml", "deploy/constraints.txt")]
    front = {line.partition("==")[0] for line in requirements(*texts, [])}
    worker = {line.partition("==")[0] for line in requirements(*texts, ["worker"])}
    assert not front & {"torch", "triton", "safetensors"}
    assert worker - front == {"torch", "triton", "safetensors"}
    with pytest.raises(KeyError):
        requirements(*texts, ["no such extra"])


def test_the_build_gets_the_index_of_torchs_cpu_build() -> None:
    arguments = SERVICES["check-model"]["build"]["args"]
    assert arguments["CPU_TORCH_INDEX"] == "${CPU_TORCH_INDEX:-}"
    dockerfile = (ROOT / "deploy/images/worker.Dockerfile").read_text()
    assert "ARG CPU_TORCH_INDEX=\n" in dockerfile
    assert "--extra-index-url ${CPU_TORCH_INDEX:-https://" in dockerfile


@pytest.mark.parametrize("name", ["redis", "coordinator", "prefill", "decode", "colocated"])
def test_a_service_that_starts_receives_sigterm(name: str) -> None:
    """Process 1 ignores signals that it has no handler for yet."""
    assert SERVICES[name]["init"] is True
