"""How a worker's process ends."""

import subprocess
import sys

ENDS = """
import atexit, logging, sys
from telemetry.logs import configure_logging
from worker.main import end
configure_logging("decode")
atexit.register(print, "the interpreter's own end")
print("printed", end="")
logging.getLogger("decode").warning("logged")
end(7)
"""


def test_what_was_printed_and_logged_is_out_before_a_worker_ends() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "printed")
    assert "logged" in done.stderr


def test_a_worker_ends_though_nobody_reads_what_it_prints() -> None:
    code = ENDS.replace("end(7)", "import os; os.close(1); end(7)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 7
