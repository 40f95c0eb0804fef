"""``python -m decode``: one decode worker."""

import gc

gc.disable()  # until worker.main.run_service: nothing that imports make is garbage

import os
import sys

from telemetry.last_words import run_command
from worker.main import command, end
from worker.role_options import DecodeOptions

main = command(DecodeOptions)

if __name__ == "__main__":
    end(run_command("decode", main, sys.argv[1:], os.environ))
