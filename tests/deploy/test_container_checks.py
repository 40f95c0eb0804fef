"""What the doctor says about containers: the engine, its way to GPUs, SELinux."""

import json
from pathlib import Path

import pytest

from deploy.container_checks import containers

ENGINE = {"ServerVersion": "28.2.2", "Runtimes": {"runc": {}}, "SecurityOptions": []}


class Host:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"PATH": f"{folder}:/usr/bin:/bin"}

    def docker(self, answer: object, code: int = 0) -> None:
        (self.folder / "answer").write_text(json.dumps(answer))
        script = f"#!/bin/sh\ncat {self.folder / 'answer'}\nexit {code}\n"
        (self.folder / "docker").write_text(script)
        (self.folder / "docker").chmod(0o755)

    def findings(self, *, on_gpus: bool = True) -> list[tuple[str, str, str]]:
        enforced = self.folder / "enforce"
        found = containers(
            on_gpus=on_gpus, code=self.folder, environ=self.environ, enforced=enforced
        )
        return [(each.level, each.text, each.advice) for each in found]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_without_docker_nothing_is_said(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host.environ = {"PATH": str(tmp_path)}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host.findings() == []


@pytest.mark.parametrize(("answer", "code"), [(ENGINE, 1), ([], 0), ("no", 0)])
def test_an_engine_that_does_not_answer_is_no_fault(host: Host, answer, code: int) -> None:
    host.docker(answer, code)
    assert host.findings() == [("ok", "Docker does not answer; only compose needs it", "")]


def test_a_registered_runtime_is_well(host: Host) -> None:
    host.docker(ENGINE | {"Runtimes": {"runc": {}, "nvidia": {}}})
    first, second = host.findings()
    assert first == ("ok", "Docker 28.2.2 answers", "")
    assert second == ("ok", "the runtime nvidia is registered with Docker", "")


def test_a_runtime_that_is_not_registered_is_a_warning_with_advice(host: Host) -> None:
    host.docker(ENGINE)
    (level, text, advice) = host.findings()[1]
    assert (level, text) == ("warn", "Docker has no access to the GPUs")
    assert "nvidia-ctk runtime configure --runtime=docker" in advice
    assert len(host.findings(on_gpus=False)) == 1, "on the CPU none is needed"


def test_gpus_by_cdi(host: Host) -> None:
    (host.folder / "cdi").mkdir()
    host.docker(ENGINE | {"CDISpecDirs": [str(host.folder / "cdi")]})
    assert host.findings()[1][0] == "warn"
    (host.folder / "cdi" / "nvidia.yaml").touch()
    level, text, _ = host.findings()[1]
    assert level == "ok"
    assert text.endswith("use docker-compose.cdi.yml")


@pytest.mark.parametrize(
    ("env", "label", "level", "text"),
    [
        ("", None, "warn", "SELinux lets containers read labelled files only"),
        ("MODEL_DIR=m", "system_u:object_r:container_file_t:s0\0", "ok", "lets containers read"),
        ("MODEL_DIR='m'", "unconfined_u:object_r:user_home_t:s0\0", "warn", "user_home_t"),
        ("MODEL_DIR=m", None, "warn", "its label: none"),
    ],
)
def test_selinux_where_it_is_enforced(
    host: Host, monkeypatch: pytest.MonkeyPatch, env: str, label: str | None, level: str, text: str
) -> None:
    def getxattr(path: Path, name: str) -> bytes:
        assert (path, name) == (host.folder / "m", "security.selinux")
        if label is None:
            raise OSError(61, "No data available")
        return label.encode()

    monkeypatch.setattr("os.getxattr", getxattr)
    host.docker(ENGINE | {"SecurityOptions": ["name=seccomp,profile=builtin", "name=selinux"]})
    (host.folder / ".env").write_text(f"{env}\n")
    (host.folder / "enforce").write_text("0")
    assert len(host.findings(on_gpus=False)) == 1
    (host.folder / "enforce").write_text("1")
    found = host.findings(on_gpus=False)[1]
    assert found[0] == level
    assert text in found[1]
    assert ("chcon -Rt container_file_t" in found[2]) == (level == "warn")
