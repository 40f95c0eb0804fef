"""Runs all of tests/clients: ``python -m tests.clients.run [--out FILE] [ENVIRONMENT ...]``.

Packages that exclude each other, or take long to install, get virtual environments of their own in
``--folder``; one stack with the bundled model serves all of them. The result file has the versions,
what the installations cost, and each test's outcome.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import environment, result_file
from bench.stack import ROOT, running

HERE = Path("tests/clients")
LIMIT_S = 600.0
_INSTALL_S = 600.0
_TESTS = ("httpx", "pytest", "pytest-asyncio", "pytest-timeout")


@dataclass(frozen=True)
class Environment:
    """``extra`` of pyproject.toml is installed in it; "" is the environment that runs this."""

    extra: str
    files: tuple[str, ...]


ENVIRONMENTS = {
    "dev": Environment("", ("test_*.py",)),
    "langchain": Environment("clients-langchain", ("langchain_calls.py",)),
    "pydantic-ai": Environment("clients-pydantic-ai", ("pydantic_ai_calls.py",)),
    "litellm": Environment("clients-litellm", ("litellm_calls.py",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="ENVIRONMENT", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "clients")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "clients.json")
    arguments = parser.parse_args()
    names = arguments.names or list(ENVIRONMENTS)
    results: dict[str, Any] = {}
    with running(ROOT / "models" / "tiny") as stack:
        for name in names:
            print(f"{name}:", flush=True)
            results[name] = _run(ENVIRONMENTS[name], arguments.folder / name, stack.url)
            counts = {key: results[name][key] for key in ("passed", "failed", "install_s")}
            print(f"{name}: {counts}", flush=True)
    problems = [
        f"{name}: {test}"
        for name, found in results.items()
        for test, outcome in found["tests"].items()
        if outcome != "passed"
    ]
    found = result_file.document(
        "clients",
        environment=environment.describe(sys.argv[1:], "tests.clients.run"),
        server={"model": "tiny"},
        settings={"environments": names},
        results=results,
        problems=problems,
    )
    result_file.write(arguments.out, found)
    print(result_file.one_line({"ok": not problems, "problems": len(problems)}))
    return 1 if problems else 0


def _run(wanted: Environment, folder: Path, url: str) -> dict[str, Any]:
    python, cost = Path(sys.executable), {"install_s": 0.0, "size_mib": 0}
    if wanted.extra:
        python, cost = _installed(wanted.extra, folder)
    report = folder / "report.xml"
    report.parent.mkdir(parents=True, exist_ok=True)
    files = [str(path) for pattern in wanted.files for path in sorted(HERE.glob(pattern))]
    command = [str(python), "-m", "pytest", "-q", "--confcutdir", str(HERE)]
    began = time.monotonic()
    subprocess.run(
        [*command, "--junitxml", str(report), *files], cwd=ROOT, timeout=LIMIT_S,
        env={**os.environ, "BATON_CLIENTS_URL": url}, check=False,
    )  # fmt: skip
    tests = _outcomes(report)
    passed = sum(outcome == "passed" for outcome in tests.values())
    return {
        "packages": _versions(python, wanted), **cost, "tests_s": time.monotonic() - began,
        "passed": passed, "failed": len(tests) - passed, "tests": tests,
    }  # fmt: skip


def _installed(extra: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The interpreter of a new environment with the packages of ``extra``, and what that cost."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=60)
    python = folder / "bin" / "python"
    pins = [f"{name}=={metadata.version(name)}" for name in _TESTS]
    install = [str(python), "-m", "pip", "install", "--quiet", *pins, *_extra(extra)]
    subprocess.run(install, check=True, timeout=_INSTALL_S)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return python, {"install_s": time.monotonic() - began, "size_mib": round(size / 2**20)}


def _extra(name: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages: list[str] = project["optional-dependencies"][name]
    return packages


def _versions(python: Path, wanted: Environment) -> list[str]:
    if wanted.extra:
        return _extra(wanted.extra)
    listed = subprocess.run(
        [str(python), "-m", "pip", "freeze"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return re.findall(r"^(?:openai|anthropic|lm[-_]eval|pydantic)==.*$", listed, re.MULTILINE)


def _outcomes(report: Path) -> dict[str, str]:
    """``passed``, or the first line of what went wrong, by test."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        wrong = [child for child in case if child.tag in ("failure", "error", "skipped")]
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        found[name] = wrong[0].get("message", "")[:200] if wrong else "passed"
    return found


if __name__ == "__main__":
    sys.exit(main())
