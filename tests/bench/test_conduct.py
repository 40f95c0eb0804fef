"""What goes around every measurement."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from bench.harness.client.endpoint import Deadlines, endpoint
from bench.harness.conduct import Conduct, Session
from bench.harness.run_control import Patience
from tests.bench.gpu.test_sampler import Scripted
from tests.bench.stub import Behaviour, Stub


class Found:
    def json(self) -> dict[str, Any]:
        return {"tokens": 1}

    def problems(self) -> list[str]:
        return []

    def headline(self) -> dict[str, Any]:
        return {"tokens": 1}


def test_the_gpus_health_is_recorded_beside_the_figures(
    serve_stub: Callable[[Behaviour], Stub], tmp_path: Path
) -> None:
    gpus = Scripted(enough=1)

    async def work(session: Session) -> Found:
        assert gpus.enough.wait(10.0)
        return Found()

    out, html = tmp_path / "result.json", tmp_path / "report.html"
    where = endpoint(serve_stub(Behaviour()).url)
    with pytest.raises(typer.Exit) as ended:
        Conduct("probe", where, None, Deadlines(), Patience(), {}, out, html, True, lambda: gpus)(
            work
        )
    assert ended.value.exit_code == 0
    results = json.loads(out.read_text())["results"]
    assert results["tokens"] == 1
    first = results["gpu"][0]
    assert first["at_s"] == 0.0
    assert [gpu["temperature_c"] for gpu in first["gpus"]] == [0.0, 1.0]
    assert "GPU health" in html.read_text()


@pytest.mark.parametrize(
    ("url", "local"),
    [("http://127.0.0.1:8000", True), ("http://[::1]:8000", True), ("http://node7:8000", False)],
)
def test_only_this_machines_gpus_can_be_seen(url: str, local: bool) -> None:
    assert endpoint(url).is_local is local
