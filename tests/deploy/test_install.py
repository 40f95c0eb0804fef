"""Set-up by make, with a Python that only writes down what it was asked to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.running import ROOT

FAKE_PYTHON = """#!/bin/bash
echo "$*" >> "$FAKE_LOG"
case "$*" in
    *ensurepip*) exit ${FAKE_ENSUREPIP:-0} ;;
    *importlib.metadata*) echo "$FAKE_TORCH" ;;
    *"-m venv"*) mkdir -p .venv/bin; rm -f .venv/.installing; cp "$0" .venv/bin/python ;;
    *"config list"*) echo "$FAKE_PIP_CONFIG" ;;
    *"pip"*"uv=="*) exit ${FAKE_GET_UV:-0} ;;
    *"-m uv"*) env | grep -E '^(UV_|SSL_CERT)' | sort >> "$FAKE_LOG.uv"; exit ${FAKE_UV:-0} ;;
    *"pip"*"+cpu"*) exit ${FAKE_CPU_INDEX:-0} ;;
    *"pip"*" -e "*)
        packages=.venv/lib/python3.11/site-packages
        [ -z "$FAKE_WROTE" ] || { mkdir -p $packages; touch -d '1 minute' $packages; }
        exit ${FAKE_PIP:-0} ;;
esac
"""


class Checkout:
    """A folder with just enough to set up; ``asked`` is what Python was asked since last time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        (folder / "deploy").mkdir()
        (folder / "bin").mkdir()
        for name in ("Makefile", "pyproject.toml", "deploy/constraints.txt", "deploy/install.sh"):
            shutil.copy(ROOT / name, folder / name)
        self.tool("python3.11", FAKE_PYTHON)
        for name in ("python3.12", "python3.13", "python3", "nvidia-smi"):
            self.tool(name, "#!/bin/sh\nexit 1\n")

    def tool(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def make(self, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        return subprocess.run(
            ["make", "--no-print-directory", *args],
            env={"PATH": path, "FAKE_LOG": str(self.log), **environ},
            cwd=self.folder, capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip

    def asked(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def installs(asked: list[str], by: str = "uv") -> list[str]:
    """What uv, or pip, was asked to install, but for uv itself."""
    lines = [line.split(" install ") for line in asked if " install " in line]
    options = ("-q --python .venv/bin/python ", "-qq ")
    found = []
    for begin, packages in lines:
        if begin.startswith("-m uv") == (by == "uv") and "uv==" not in packages:
            for option in options:
                packages = packages.removeprefix(option)
            found.append(packages)
    return found


def test_without_gpu_the_cpu_build_of_torch_comes_first(checkout):
    done = checkout.make(".venv/.stamp-up")
    assert done.returncode == 0, done.stderr
    torch, rest = installs(checkout.asked())
    assert torch.startswith("--no-deps torch==2.13.0+cpu --extra-index-url https://download.py")
    assert rest == "-e .[worker,redis-server,bench]"
    assert checkout.make(".venv/.stamp-up").returncode == 0
    assert checkout.asked() == [], "up to date: nothing to ask"


def test_uv_is_given_the_settings_of_pip(checkout):
    config = (
        "global.index-url='https://mirror/simple'\n"
        "global.find-links='/other'\n"
        ":env:.find-links='/wheels\\n/more'\n"
        "global.constraint='/limits.txt'\n"
        "global.timeout='60'"
    )
    assert checkout.make(".venv/.stamp-up", FAKE_PIP_CONFIG=config).returncode == 0
    assert set(checkout.log.with_name("log.uv").read_text().split()) >= {
        "UV_DEFAULT_INDEX=https://mirror/simple",
        "UV_FIND_LINKS=/wheels,/more",
        "UV_CONSTRAINT=deploy/constraints.txt",
        "/limits.txt",
        "UV_COMPILE_BYTECODE=1",
    }
    (torch, _) = installs(checkout.asked())
    assert torch == "--no-index --no-deps torch==2.13.0+cpu", "a wheel at hand needs no index"


def test_without_uv_pip_installs(checkout):
    done = checkout.make(".venv/.stamp-up", FAKE_GET_UV="1")
    assert done.returncode == 0, done.stderr
    assert "cannot be had: going on with pip" in done.stderr
    torch, rest = installs(checkout.asked(), by="pip")
    assert torch.startswith("--no-deps torch==2.13.0+cpu --extra-index-url https://download.py")
    assert rest == "-c deploy/constraints.txt -e .[worker,redis-server,bench]"


def test_what_uv_cannot_install_pip_does(checkout):
    done = checkout.make(".venv/.stamp-up", FAKE_UV="1")
    assert done.returncode == 0, done.stderr
    assert "uv could not install the dependencies (see above): pip tries" in done.stderr
    assert (
        installs(checkout.asked(), by="pip")[-1]
        == "-c deploy/constraints.txt -e .[worker,redis-server,bench]"
    )


def test_with_gpu_torch_comes_as_it_is(checkout):
    checkout.tool("nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H200'\n")
    assert checkout.make("setup").returncode == 0
    assert installs(checkout.asked()) == ["-e .[worker,redis-server,dev,gpu]"]


@pytest.mark.parametrize("newer", ["pyproject.toml", "deploy/constraints.txt"])
def test_newer_settings_install_again_into_the_same_environment(checkout, newer):
    checkout.make(".venv/.stamp-up")
    checkout.asked()
    now = (checkout.folder / ".venv/.stamp-up").stat().st_mtime
    os.utime(checkout.folder / newer, (now + 1, now + 1))
    checkout.make(".venv/.stamp-up", FAKE_TORCH="2.13.0+cpu")
    asked = checkout.asked()
    assert installs(asked) == ["-e .[worker,redis-server,bench]"]
    assert not any("-m venv" in line for line in asked)


def test_interrupted_install_starts_over(checkout):
    checkout.make(".venv/.stamp-up")
    checkout.asked()
    (checkout.folder / ".venv/.installing").touch()
    (checkout.folder / ".venv/.stamp-up").unlink()
    done = checkout.make(".venv/.stamp-up")
    assert "interrupted; starting over" in done.stderr
    assert any("-m venv --clear .venv" in line for line in checkout.asked())


def test_failed_install_leaves_no_stamp(checkout):
    done = checkout.make(".venv/.stamp-up", FAKE_UV="1", FAKE_PIP="1")
    assert done.returncode == 2
    assert "error: could not install" in done.stderr
    assert not (checkout.folder / ".venv/.stamp-up").exists()


def test_a_failed_download_keeps_the_environment(checkout):
    done = checkout.make(".venv/.stamp-up", FAKE_UV="1", FAKE_PIP="1")
    assert ".venv is as it was, and the next run goes on there" in done.stderr
    checkout.asked()
    assert checkout.make(".venv/.stamp-up", FAKE_TORCH="2.13.0+cpu").returncode == 0
    asked = checkout.asked()
    assert installs(asked) == ["-e .[worker,redis-server,bench]"]
    assert not any("-m venv" in line for line in asked)


def test_a_failure_while_packages_are_written_starts_over(checkout):
    done = checkout.make(".venv/.stamp-up", FAKE_UV="1", FAKE_PIP="1", FAKE_WROTE="1")
    assert "the next run starts over" in done.stderr
    checkout.asked()
    assert checkout.make(".venv/.stamp-up").returncode == 0
    assert any("-m venv --clear .venv" in line for line in checkout.asked())


def test_without_the_index_of_cpu_builds_pypis_torch_serves(checkout):
    done = checkout.make(".venv/.stamp-up", FAKE_UV="1", FAKE_CPU_INDEX="1")
    assert done.returncode == 0, done.stderr
    assert "going on with PyPI's build" in done.stderr
    assert "CPU_TORCH_INDEX" in done.stderr
    first, second, rest = installs(checkout.asked(), by="pip")
    assert "+cpu" in first
    assert "+cpu" in second
    assert rest == "-c deploy/constraints.txt -e .[worker,redis-server,bench]"


def test_another_index_of_cpu_builds_may_be_named(checkout):
    checkout.make(".venv/.stamp-up", CPU_TORCH_INDEX="https://mirror.example/cpu")
    assert "--extra-index-url https://mirror.example/cpu" in installs(checkout.asked())[0]


def test_gpu_tests_without_a_gpu_are_refused_at_once(checkout):
    done = checkout.make("test-gpu")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].startswith("error: no NVIDIA GPU here (nvidia-smi -L lists")
    assert checkout.asked() == [], "nothing is installed for it"
    checkout.tool("nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H200'\n")
    assert checkout.make("-n", "test-gpu").returncode == 0


def test_a_missing_python_is_named(checkout):
    checkout.tool("python3.11", "#!/bin/sh\nexit 1\n")
    done = checkout.make("setup")
    assert done.returncode == 2
    assert "error: no Python 3.11 to 3.13 found" in done.stderr
    done = checkout.make("setup", "PYTHON=python3.12")
    assert "error: PYTHON=python3.12 is not Python 3.11 to 3.13" in done.stderr


def test_a_missing_venv_package_is_named(checkout):
    done = checkout.make("setup", FAKE_ENSUREPIP="1")
    assert done.returncode == 2
    assert "python3-venv" in done.stderr


def test_settings_of_make_up_pass_on(checkout):
    shown = checkout.make("-n", "up", "PORT=8123", "ARGS=--decode 2").stdout
    assert shown.splitlines()[-1].strip() == ".venv/bin/baton up --port 8123 --decode 2"


def test_help_lists_the_targets(checkout):
    shown = checkout.make("help").stdout
    for target in ("up", "test", "check", "bench", "test-gpu", "setup", "clean", "help"):
        assert f"make {target} " in shown
