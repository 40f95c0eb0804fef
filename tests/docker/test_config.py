"""Both readers of compose files take ours without a word of complaint."""

import subprocess

import pytest

from tests.docker.composed import ROOT, compose_commands, environment


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
