"""Both readers of compose files take ours without a word of complaint, and images get all of us."""

import subprocess
import tomllib

import pytest

from tests.docker.composed import ROOT, compose_commands, environment

pytestmark = pytest.mark.timeout(480)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_config_is_clean(device: str) -> None:
    if not (commands := compose_commands()):
        pytest.skip("neither the compose plugin nor docker-compose")
    settings = environment() if device == "cpu" else environment(
        BATON_RUNTIME="nvidia", BATON_DEVICE="cuda", BATON_VARIANT="cuda",
    )  # fmt: skip
    for command in commands:
        done = subprocess.run(
            [*command, "--env-file", ".env.example", "config", "-q"],
            cwd=ROOT, env=settings, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), command


def test_the_images_are_built_from_every_package() -> None:
    """.dockerignore names what a build may see, and pyproject.toml what it takes of that."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = pyproject["tool"]["setuptools"]["packages"]
    seen = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    folders = {name.partition(".")[0] for name in packages}
    assert folders <= seen
    rooms = [room.parent for name in folders for room in (ROOT / name).rglob("__init__.py")]
    training = "models.recipe"  # makes the bundled model, and serves nothing
    found = {".".join(room.relative_to(ROOT).parts) for room in rooms}
    assert found - {training} == set(packages)
