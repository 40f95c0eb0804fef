"""The launcher of stacks for tests and benchmarks."""

import subprocess
import sys
from pathlib import Path

from bench.stack import ROOT
from tests.deploy.running import all_dead

PARENT = """
import sys, time
from pathlib import Path
from tests.deploy.running import Up

stack = Up(Path(sys.argv[1]))
stack.start()
print(stack.process.pid, *stack.children(), flush=True)
time.sleep(1000)
"""


def test_a_stack_dies_with_the_process_that_started_it(short_dir: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(short_dir)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout as output:
        pids = [int(pid) for pid in output.readline().split()]
    assert len(pids) == 1 + 3 + 1, "itself, three services and the guardian"
    assert not any(all_dead([pid], deadline_s=0.0) for pid in pids)
    parent.kill()
    parent.wait()
    assert all_dead(pids)
    assert list((short_dir / "run").iterdir()) == []
