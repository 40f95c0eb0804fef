"""``python -m prefill``: one prefill worker."""

import gc

gc.disable()  # until worker.main.run_service: nothing that imports make is garbage

import os
import sys

from telemetry.last_words import run_command
from worker.main import command, end
from worker.role_options import PrefillOptions

main = command(PrefillOptions)

if __name__ == "__main__":
    end(run_command("prefill", main, sys.argv[1:], os.environ))
