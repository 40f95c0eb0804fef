"""The control plane runs without torch: its processes stay small and start fast. Workers on a CPU
run without triton, which their image does not have."""

import subprocess
import sys

import pytest

CONTROL_PLANE = [
    "coordinator.__main__",
    "deploy.cli",
    "telemetry.logs",
    "transport.wire.channel",
    "transport.wire.session",
    "transport.copy.shm",
]


@pytest.mark.parametrize("module", CONTROL_PLANE)
def test_imports_no_torch(module: str) -> None:
    code = (
        f"import importlib, sys; importlib.import_module({module!r})\n"
        "print(sorted({'torch', 'cupy', 'triton', 'transformers'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_workers_on_a_cpu_need_no_triton() -> None:
    code = "import sys; sys.modules['triton'] = None\nimport worker.main, engine.runner"
    subprocess.run([sys.executable, "-c", code], check=True)
