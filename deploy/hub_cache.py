"""Finds the checkpoint of a model id, such as Qwen/Qwen3.5-35B-A3B, in the Hugging Face cache.

Nothing is fetched: a start that downloads 70 GB looks like one that hangs. The error for a model
that is not there has the command that fetches it.
"""

import re
import shutil
import sys
from pathlib import Path

from transport.checkpoint_folder import CONFIG, TOKENIZER, weight_files

_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


def is_model_id(model: Path) -> bool:
    """True if ``model`` has the form of a model id, ORG/NAME, and is no path that exists."""
    return _ID.fullmatch(str(model)) is not None and not model.exists()


def cached_checkpoint(model_id: str, setting: str, *, needs_weights: bool) -> Path:
    """The snapshot of a model that huggingface_hub finds without the network: in ``HF_HUB_CACHE``,
    or ``HF_HOME``'s hub, or ~/.cache/huggingface/hub. Raises ValueError that begins with
    ``setting``, if it or a file of it is missing."""
    # To import the hub's client takes half a second, which only a model id spends.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(model_id, local_files_only=True))
        missing = _missing(folder, needs_weights=needs_weights)
    except HFValidationError as error:
        raise ValueError(f"{setting}: {model_id} is no folder, and no model id: {error}") from None
    except LocalEntryNotFoundError:
        raise ValueError(
            f"{setting}: {model_id} is neither a folder nor in the Hugging Face cache "
            f"{constants.HF_HUB_CACHE}; `{_fetch(model_id)}` fetches it"
        ) from None
    if missing:
        raise ValueError(
            f"{setting}: {model_id} is incomplete in the Hugging Face cache, {folder / missing} is "
            f"missing; `{_fetch(model_id)}` fetches the rest"
        )
    return folder


def _missing(folder: Path, *, needs_weights: bool) -> str:
    """The first file of a snapshot that is not there; "" if all are."""
    names = [CONFIG, TOKENIZER]
    if needs_weights:
        names += weight_files(folder)
    return next((name for name in names if not (folder / name).exists()), "")


def _fetch(model_id: str) -> str:
    """The command that fetches a model, with the ``hf`` that came with Baton unless one is on
    PATH."""
    ours = Path(sys.executable).with_name("hf")
    hf = "hf" if shutil.which("hf") or not ours.exists() else str(ours)
    return f"{hf} download {model_id}"
