"""Builds the images and runs the stack once; tells what it measured, or why it did not run."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.environment import describe_command
from bench.result_file import document, write
from tests import told
from tests.docker.composed import SERVICES, missing
from tests.docker.node import Node

RESULT = "BATON_COMPOSE_RESULT"
"""Names the file for what was measured, where that is wanted."""


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    if reason := missing():
        told.LINES.append(f"docker compose: not run: {reason}")
        pytest.skip(reason)
    node = Node()
    try:
        begun = time.monotonic()
        node.measures["build_steps_from_cache"] = node.build()
        node.measures["build_s"] = time.monotonic() - begun
        for name in ("coordinator", "worker"):
            node.measures[f"{name}_image_bytes"] = node.image_bytes(node.image(name))
        node.measures["worker_base_image_bytes"] = node.image_bytes(
            node.setting("WORKER_BASE_IMAGE")
        )
        node.measures["up_to_ready_s"] = asyncio.run(node.up())
        yield node
    finally:
        node.close()
    _tell(node, request.session.testsfailed)


def _tell(node: Node, num_failed: int) -> None:
    figures = ", ".join(f"{name} {value:,.4g}" for name, value in node.measures.items())
    told.LINES.append(f"docker compose: {figures}")
    if path := os.environ.get(RESULT):
        command = f"{RESULT}={Path(path).name} make test ARGS=tests/docker"
        found = document(
            "compose",
            environment=describe_command(command),
            server={"services": list(SERVICES), "model": "tiny"},
            settings={
                "prefill": 1,
                "decode": 1,
                "engine": node.engine(),
                "compose": node.compose("version", "--short").strip(),
            },
            results=node.measures,
            problems=[f"{num_failed} tests failed"] if num_failed else [],
        )
        write(Path(path), found)
