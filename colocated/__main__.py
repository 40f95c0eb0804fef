"""``python -m colocated``: one worker that prefills and decodes."""

import gc

gc.disable()  # until worker.main.run_service: nothing that imports make is garbage

import os
import sys

from telemetry.last_words import run_command
from worker.main import command, end
from worker.role_options import ColocatedOptions

main = command(ColocatedOptions)

if __name__ == "__main__":
    end(run_command("colocated", main, sys.argv[1:], os.environ))
