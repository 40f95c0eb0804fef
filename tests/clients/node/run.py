"""Runs the clients of npm: ``python -m tests.clients.node.run [--out FILE]``.

openai-node and the Vercel AI SDK are installed in ``--folder`` and used unchanged against a stack
with the bundled model. Needs node 20 or newer, and npm. The result file has the versions,
what the installation cost, and each test's outcome.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from bench import environment, result_file
from bench.stack import ROOT, running

HERE = Path(__file__).parent
_INSTALL_S = 600.0
_TESTS_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "clients" / "node")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "results" / "clients-node.json"
    )
    arguments = parser.parse_args()
    cost = _install(arguments.folder)
    with running(ROOT / "models" / "tiny") as stack:
        began = time.monotonic()
        outcomes = _outcomes(arguments.folder, stack.url)
        tests_s = time.monotonic() - began
    problems = [name for name, outcome in outcomes.items() if outcome != "passed"]
    if not outcomes:
        problems = ["no test ran"]
    found = result_file.document(
        "clients",
        environment=environment.describe(sys.argv[1:], "tests.clients.node.run"),
        server={"model": "tiny"},
        settings={"node": _output("node", "--version"), "npm": _output("npm", "--version")},
        results={
            "packages": json.loads((HERE / "package.json").read_text())["dependencies"],
            **cost,
            "tests_s": tests_s,
            "tests": outcomes,
        },
        problems=problems,
    )
    result_file.write(arguments.out, found)
    print(result_file.one_line({"ok": not problems, "passed": len(outcomes) - len(problems)}))
    return 1 if problems else 0


def _install(folder: Path) -> dict[str, Any]:
    """Install the packages and copy the tests beside them."""
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for file in (*HERE.glob("*.mjs"), HERE / "package.json"):
        shutil.copy(file, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
    subprocess.run(command, cwd=folder, check=True, timeout=_INSTALL_S)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"install_s": time.monotonic() - began, "size_mib": round(size / 2**20)}


def _outcomes(folder: Path, url: str) -> dict[str, str]:
    """``passed``, or the first line of what went wrong, by test."""
    report = folder / "report.xml"
    files = sorted(path.name for path in folder.glob("*.test.mjs"))
    subprocess.run(
        ["node", "--test", "--test-concurrency=1", "--test-reporter=junit",
         f"--test-reporter-destination={report}", *files],
        cwd=folder, env={**os.environ, "BATON_CLIENTS_URL": url}, timeout=_TESTS_S, check=False,
    )  # fmt: skip
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        wrong = [child for child in case if child.tag in ("failure", "error", "skipped")]
        found[case.get("name", "")] = wrong[0].get("message", "")[:200] if wrong else "passed"
    return found


def _output(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return ran.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
