"""``make env`` writes an .env that suits the machine, and never changes one."""

import re
import shutil
import subprocess
from inspect import signature
from pathlib import Path

import pytest

from bench.cli import COMMANDS
from deploy.settings import resolve
from tests.deploy.running import ROOT

TINY = ROOT / "models" / "tiny"
SECRETS = ("REDIS_PASSWORD", "BATON_CHANNEL_SECRET", "GRAFANA_PASSWORD")


class Checkout:
    """A folder with just enough to write .env on a machine with ``num_gpus`` GPUs."""

    def __init__(self, folder: Path, num_gpus: int) -> None:
        self.folder = folder
        for name in ("deploy", "bin", "models/tiny"):
            (folder / name).mkdir(parents=True)
        for name in ("Makefile", ".env.example", "deploy/make-env.sh", "deploy/cpu.env"):
            shutil.copy(ROOT / name, folder / name)
        lines = "".join(f"echo 'GPU {i}: NVIDIA H200'\n" for i in range(num_gpus))
        (folder / "bin" / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}")
        (folder / "bin" / "nvidia-smi").chmod(0o755)

    def make(
        self, arguments: str = "", path: str = "/usr/bin:/bin"
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "--no-print-directory", "env", f"ARGS={arguments}"], cwd=self.folder,
            env={"PATH": f"{self.folder / 'bin'}:{path}"},
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip

    def settings(self) -> dict[str, str]:
        text = (self.folder / ".env").read_text()
        return dict(re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE))


def example(name: str = ".env.example") -> dict[str, str]:
    return dict(re.findall(r"^([A-Z_]+)=(.*)$", (ROOT / name).read_text(), re.MULTILINE))


@pytest.mark.parametrize("num_gpus", [1, 2, 3, 4, 6, 8])
def test_the_pools_are_those_of_baton_up(tmp_path: Path, num_gpus: int) -> None:
    checkout = Checkout(tmp_path, num_gpus)
    done = checkout.make()
    assert done.returncode == 0, done.stderr
    found, up = checkout.settings(), resolve(num_gpus=num_gpus, model=TINY)
    pools = [int(found[f"{pool}_REPLICAS"]) for pool in ("PREFILL", "DECODE", "COLOCATED")]
    assert pools == [up.num_prefill, up.num_decode, up.num_colocated]
    assert int(found["HOST_WORKERS"]) == num_gpus
    rest = example().keys() - {*SECRETS, "HOST_WORKERS"} - {n for n in found if "REPLICAS" in n}
    assert {name: found[name] for name in rest} == {name: example()[name] for name in rest}
    assert not any(found[name] in done.stdout for name in SECRETS)


def test_without_a_gpu_the_settings_for_the_cpu_apply(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, 0)
    assert checkout.make().returncode == 0
    assert example("deploy/cpu.env").items() <= checkout.settings().items()
    assert example("deploy/cpu.env").keys() <= example().keys()


def test_the_secrets_are_new_long_and_for_the_owner_alone(tmp_path: Path) -> None:
    made = [Checkout(tmp_path / name, 0) for name in "ab"]
    for checkout in made:
        checkout.make()
        assert (checkout.folder / ".env").stat().st_mode & 0o777 == 0o600
        assert sorted(path.name for path in checkout.folder.glob(".env*")) == [
            ".env", ".env.example",
        ]  # fmt: skip
    values = [checkout.settings()[name] for checkout in made for name in SECRETS]
    assert len({*values}) == 6
    assert all(re.fullmatch(r"[0-9a-f]{48}", value) for value in values)


def test_an_env_that_exists_is_left_alone(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, 0)
    (tmp_path / ".env").write_text("REDIS_PASSWORD=mine\n")
    done = checkout.make()
    assert (done.returncode, "exists and is left as it is" in done.stderr) == (2, True)
    assert (tmp_path / ".env").read_text() == "REDIS_PASSWORD=mine\n"


def test_settings_are_passed_on(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, 4)
    (tmp_path / "a model").mkdir()
    said = checkout.make(f'"MODEL_DIR={tmp_path}/a model" BATON_DEVICE=cpu DECODE_REPLICAS=3')
    assert said.returncode == 0, said.stderr
    found = checkout.settings()
    assert found["MODEL_DIR"] == f"'{tmp_path}/a model'"
    assert (found["BATON_RUNTIME"], found["DECODE_REPLICAS"], found["HOST_WORKERS"]) == (
        "runc", "3", "4",
    )  # fmt: skip


def test_settings_of_compose_itself_are_taken(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, 0)
    files, index = "docker-compose.yml:docker-compose.cdi.yml", "https://mirror.example/cpu"
    said = checkout.make(
        f"COMPOSE_PROJECT_NAME=two COMPOSE_FILE={files} CPU_TORCH_INDEX={index} BATON_DEVICE=cpu"
    )
    assert said.returncode == 0, said.stderr
    found = checkout.settings()
    assert (found["COMPOSE_PROJECT_NAME"], found["COMPOSE_FILE"]) == ("two", files)
    assert found["CPU_TORCH_INDEX"] == index


def test_compose_chooses_its_own_settings_by_default(tmp_path: Path) -> None:
    """An empty COMPOSE_FILE is a file without a name, and any value hides an override file."""
    checkout = Checkout(tmp_path, 0)
    checkout.make()
    assert not [name for name in checkout.settings() if name.startswith("COMPOSE_")]


@pytest.mark.parametrize(
    ("installed", "command"),
    [
        ({"docker": "exit 0", "docker-compose": "exit 0"}, "docker compose"),
        ({"docker": "exit 1", "docker-compose": "exit 0"}, "docker-compose"),
        ({"docker": "exit 1"}, "docker compose"),
    ],
)
def test_the_next_command_is_that_of_the_compose_that_is_installed(
    tmp_path: Path, installed: dict[str, str], command: str
) -> None:
    checkout = Checkout(tmp_path, 0)
    for name in ("bash", "chmod", "cp", "dirname", "env", "grep", "ln", "make", "mktemp", "od",
                 "rm", "sed", "sh", "tr"):  # fmt: skip
        (checkout.folder / "bin" / name).symlink_to(str(shutil.which(name)))
    for name, script in installed.items():
        (checkout.folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (checkout.folder / "bin" / name).chmod(0o755)
    said = checkout.make(path=str(checkout.folder / "bin"))
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[-1] == f"next: {command} up -d"
    found = "docker-compose" in installed
    assert ("no compose was found here" in said.stdout) is not found


def test_of_a_cached_snapshot_the_models_folder_is_mounted(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, 0)
    model = tmp_path / "hub" / "models--Some--Model"
    (model / "snapshots" / "0123abcd").mkdir(parents=True)
    assert checkout.make(f"MODEL_DIR={model}/snapshots/0123abcd/").returncode == 0
    found = checkout.settings()
    assert (found["MODEL_DIR"], found["MODEL_SUBDIR"]) == (str(model), "snapshots/0123abcd")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("MODEL_DIR=/none/such", "MODEL_DIR: /none/such is not a folder"),
        ("REDIS_PASWORD=s3cret", "REDIS_PASWORD: is no setting"),
        ("s3cret", "is not NAME=VALUE"),
        ('"REDIS_PASSWORD=s3cret\'s"', "REDIS_PASSWORD: must have no quote"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, arguments: str, why: str) -> None:
    done = Checkout(tmp_path, 0).make(arguments)
    assert done.returncode == 2
    assert why in done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    assert not (tmp_path / ".env").exists()


def test_git_ignores_env_and_what_the_harness_writes_by_default() -> None:
    commands = ("correctness", "gpu", "load", "report", "scale", "throughput")
    outputs = [signature(COMMANDS[name]).parameters["out"].default.name for name in commands]
    for name in (".env", ".env.a1B2c3", "load.failed.json", *outputs):
        done = subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT, check=False)
        assert done.returncode == 0, name
    for name in (".env.example", "deploy/cpu.env", "docs/index.html"):
        done = subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT, check=False)
        assert done.returncode == 1, name
