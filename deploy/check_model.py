"""``python -m deploy.check_model``: checks that the services of docker-compose.yml can read the
checkpoint.

It runs before the services, as their user and with their mount, so that a problem is reported once.
The services depend on its success.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from telemetry.last_words import CANNOT_START, log_fatal, run_command
from transport.checkpoint_folder import (
    CONFIG,
    TOKENIZER,
    checkpoint_folder,
    require_readable,
    weight_files,
)

SERVICE = "check-model"


def main(
    model: Annotated[
        Path,
        typer.Option(envvar="BATON_MODEL", readable=False, help="The checkpoint's folder."),
    ],
    load_format: Annotated[
        str, typer.Option(envvar="BATON_LOAD_FORMAT", help="dummy: no weights are needed.")
    ] = "auto",
) -> None:
    """Check the files. Exit code: 0 all needed files can be read, 2 one cannot."""
    try:
        folder = checkpoint_folder(model, "MODEL_DIR")
        names = [CONFIG, TOKENIZER]
        require_readable(folder, names, "MODEL_DIR")
        if load_format != "dummy":
            names += weight_files(folder)
            require_readable(folder, names, "MODEL_DIR")
    except (ValueError, OSError) as error:
        log_fatal(SERVICE, error)
        raise typer.Exit(CANNOT_START) from None
    print(f"{folder}: all {len(names)} files can be read", flush=True)


if __name__ == "__main__":
    sys.exit(run_command(SERVICE, main, sys.argv[1:], os.environ))
