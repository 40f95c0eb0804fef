"""The command line of a worker process; the ``__main__`` of ``prefill``, ``decode`` and
``colocated`` names its options and calls this."""

import gc
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from typing import Any, NoReturn, get_type_hints

import typer

from engine.errors import GpuMemoryHeld
from telemetry.last_words import CANNOT_START, TRY_AGAIN, log_fatal
from telemetry.logs import configure_logging
from telemetry.notify import flush
from transport.wire.errors import BatonError, SharedMemoryFull
from worker.options import Options
from worker.start import serve


def command(options: type[Options]) -> Callable[..., None]:
    """A function for typer that runs a worker until it is told to stop: its parameters are the
    fields of ``options``, its help their class's docstring."""

    def main(**given: Any) -> None:
        chosen = options(**given)
        run_service(
            chosen.role, chosen.log_level, chosen.log_json, lambda: serve(chosen.settings())
        )

    main.__doc__ = options.__doc__
    main.__annotations__ = get_type_hints(options, include_extras=True)
    main.__signature__ = signature(options)  # type: ignore[attr-defined]
    return main


def run_service(service: str, log_level: str, log_json: bool, main: Callable[[], None]) -> None:
    """Run ``main``. An error that a user can correct ends the process with one line and status 2,
    or 75 if shared memory or a GPU's memory is in use that may be free later. Imported objects are
    frozen, so that the garbage collector never scans them."""
    gc.freeze()
    gc.enable()
    configure_logging(service, log_level, log_json)
    # Before CUDA is first used: a number must name the same GPU here as in nvidia-smi.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        main()
    except (ValueError, OSError, BatonError) as error:
        log_fatal(service, error)
        is_full = isinstance(error, SharedMemoryFull | GpuMemoryHeld)
        raise typer.Exit(TRY_AGAIN if is_full else CANNOT_START) from None


def end(status: int) -> NoReturn:
    """End this process, with what it has reported and logged. The interpreter's own end takes a
    worker with a GPU 0.3 s longer, and frees what the operating system frees anyway."""
    flush()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # Its reader may have ended before.
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
