"""One worker process from its command line: ``prefill``, ``decode`` and ``colocated`` have a
``__main__`` that names their options and calls this."""

import gc
import os
from collections.abc import Callable

import typer

from engine.errors import GpuMemoryHeld
from telemetry.last_words import CANNOT_START, TRY_AGAIN, say_why
from telemetry.logs import configure_logging
from transport.wire.errors import BatonError, SharedMemoryFull
from worker.options import Options
from worker.start import serve


def run_worker(options: Options) -> None:
    """Serve until told to stop."""
    run_service(
        options.role, options.log_level, options.log_json, lambda: serve(options.settings())
    )


def run_service(service: str, log_level: str, log_json: bool, main: Callable[[], None]) -> None:
    """Run ``main``; what a user can mend ends the process with one line and status 2, or 75 where
    memory is held that may be free later: shared memory, or a GPU's. What has been imported is
    never searched for garbage again, at the end of the process neither."""
    gc.freeze()
    gc.enable()
    configure_logging(service, log_level, log_json)
    # Before CUDA is first used: a number must name the same GPU here as in nvidia-smi.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        main()
    except (ValueError, OSError, BatonError) as error:
        say_why(service, error)
        is_full = isinstance(error, SharedMemoryFull | GpuMemoryHeld)
        raise typer.Exit(TRY_AGAIN if is_full else CANNOT_START) from None
