"""The wheel: what is in it, and that what it says of itself is true."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.stack import ROOT
from deploy import up_checks
from telemetry.version import DISTRIBUTION, VERSION

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
USER_EXTRAS = ("worker", "redis-server", "gpu", "correctness", "bench", "ray")
BUILD = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
LOOK = """
import json
import deploy.cli
from deploy.settings import resolve
print(json.dumps([deploy.cli.__file__, str(resolve(num_gpus=0).model)]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the files that git knows, built without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
         "--", ".", ":!docs", ":!tests", ":!bench/results"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / name).symlink_to(ROOT / name)
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)], cwd=folder / "source",
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.splitlines()[-1]


def test_it_has_all_that_serves_the_bundled_model(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        file.extractall(tmp_path / "installed")
    assert wheel.name == f"baton_serve-{VERSION}-py3-none-any.whl"
    assert not [name for name in names if name.startswith(("tests", "models/recipe"))]
    for folder in ("models/tiny", "coordinator/http/page"):
        there = sorted(path.name for path in (tmp_path / "installed" / folder).iterdir())
        assert there == sorted(path.name for path in (ROOT / folder).iterdir())
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOOK], cwd=tmp_path, env={"PYTHONPATH": "installed"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(path.startswith(f"{tmp_path}/installed/") for path in json.loads(done.stdout))


def test_it_has_every_package(wheel: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ours = {n for n in listed.stdout.split() if not n.startswith(("tests/", "models/recipe/"))}
    with zipfile.ZipFile(wheel) as file:
        names = {*file.namelist()}
    assert ours - {"deploy/images/requirements.py"} <= names
    tops = {name.partition("/")[0] for name in names if name.endswith(".py")}
    assert {f"{top}/py.typed" for top in tops} <= names


def test_every_dependency_has_a_tested_version_that_is_in_its_range_and_installed() -> None:
    text = (ROOT / "deploy" / "constraints.txt").read_text()
    tested = dict(re.findall(r"^([\w-]+)==(.+)$", text, re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(each for name in USER_EXTRAS for each in extras[name])]
    ranges = {canonicalize_name(r.name): r.specifier for r in map(Requirement, wanted)}
    assert ranges.keys() == tested.keys()
    gpu = {canonicalize_name(Requirement(each).name) for each in extras["gpu"]}
    for name, version in tested.items():
        assert version in ranges[name], name
        if name not in gpu:  # which only GPU machines have
            assert metadata.version(name).partition("+")[0] == version, name


def test_the_name_and_version_are_the_same_everywhere() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (VERSION, PROJECT["license"])
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"BATON_VERSION={VERSION}\n" in (ROOT / ".env.example").read_text()


def test_nothing_tells_anybody_to_install_what_is_not_published() -> None:
    """``baton`` on PyPI is another project, and anybody may take the name ``baton-serve``."""
    told = subprocess.run(
        ["git", "grep", "-nE", r"install (-c \S+ )?['\"]?baton|['` ]baton\[", ":!tests/deploy"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.stdout == ""


@pytest.mark.parametrize(
    ("missing", "device", "command"),
    [
        ("torch", "cpu", "pip install -e '.[worker]' in a clone of Baton (docs/packages.md)"),
        ("cupy", "cuda", "pip install -e '.[gpu]' in a clone of Baton (docs/packages.md)"),
        ("cupy", "cpu", ""),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, missing: str, device: str, command: str
) -> None:
    monkeypatch.setattr(up_checks, "find_spec", lambda name: None if name == missing else object())
    if not command:
        up_checks.require_packages(device)
        return
    with pytest.raises(ValueError, match=f"^{missing}: is not installed") as refused:
        up_checks.require_packages(device)
    assert str(refused.value).endswith(command)
