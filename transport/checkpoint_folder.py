"""Finds the folder of the checkpoint that a path names, and checks that it can be read.

The path is a checkpoint's folder, or a model's folder in a Hugging Face cache:

    models--ORG--NAME/refs/main            the name of a commit
    models--ORG--NAME/snapshots/COMMIT/    links to ../../blobs/…

A container that mounts only a snapshot has links without blobs, so it must mount the model's
folder.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def checkpoint_folder(path: Path, setting: str = "model") -> Path:
    """The folder with ``config.json``: ``path``, or in a cache the snapshot that ``refs/main``
    names, or its only one. Raises ValueError that begins with ``setting`` and says what to do."""
    try:
        names = os.listdir(path)
        if "snapshots" in names and CONFIG not in names:
            return _snapshot(path, setting)
    except FileNotFoundError:
        raise ValueError(f"{setting}: {path} does not exist; give a checkpoint's folder") from None
    except NotADirectoryError:
        raise ValueError(f"{setting}: {path} is not a folder; give a checkpoint's") from None
    except PermissionError as error:
        raise ValueError(_forbidden(Path(error.filename or path), path, setting)) from None
    if not names:
        raise ValueError(f"{setting}: {path} is an empty folder; is the path right?")
    if CONFIG not in names:
        raise ValueError(f"{setting}: {path} is not a checkpoint (it has no {CONFIG})")
    return path


def model_name(folder: Path) -> str:
    """The name of the model in a checkpoint's folder; for a cache's snapshot, its NAME."""
    cache = folder.parent.parent.name
    if folder.parent.name == "snapshots" and cache.startswith("models--"):
        return cache.rpartition("--")[2]
    return folder.name


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """The object in a JSON file; {} if it is missing and not required. Raises ValueError."""
    if not path.is_file():
        if required:
            raise ValueError(f"{path} is missing")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return value


def weight_files(folder: Path) -> list[str]:
    """Names of the weight files: the index and the shards that it lists, or the single file. Raises
    OSError and ValueError for an index that cannot be read."""
    if not os.path.lexists(folder / INDEX):
        return [SINGLE]
    try:
        shards = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()
        return [INDEX, *dict.fromkeys(str(name) for name in shards)]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{folder / INDEX} is no safetensors index: {error!r}") from None


def require_readable(folder: Path, names: Sequence[str], setting: str = "model") -> None:
    """Open each of the files ``names`` of a checkpoint's folder. Raises ValueError that begins with
    ``setting`` and says what to do, for the first that cannot be read."""
    for name in names:
        file = folder / name
        try:
            file.open("rb").close()
        except FileNotFoundError:
            if file.is_symlink():
                raise ValueError(_cut_off(file, setting)) from None
            raise ValueError(f"{setting}: {file} is missing") from None
        except PermissionError:
            raise ValueError(_forbidden(file, folder, setting)) from None
        except OSError as error:
            raise ValueError(f"{setting}: {file} cannot be read: {error.strerror}") from None


def num_tokenizer_ids(folder: Path) -> int | None:
    """One more than the highest id of the folder's ``tokenizer.json``; None without one. Ids
    from there on are padding of the vocabulary."""
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
        ids = [*content["model"]["vocab"].values()]
        ids += [token["id"] for token in content.get("added_tokens", ())]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"model: {path} is not a readable tokenizer: {error}") from None
    return int(max(ids)) + 1


def _snapshot(path: Path, setting: str) -> Path:
    snapshots = sorted(each for each in (path / "snapshots").iterdir() if each.is_dir())
    main = path / "refs" / "main"
    if main.is_file():
        wanted = path / "snapshots" / main.read_text(encoding="utf-8").strip()
        if wanted in snapshots:
            return wanted
    if len(snapshots) == 1:
        return snapshots[0]
    listed = ", ".join(each.name for each in snapshots) or "none"
    raise ValueError(
        f"{setting}: {path} is a cache without the snapshot that refs/main names; name one of its "
        f"snapshots ({listed})"
    )


def _cut_off(file: Path, setting: str) -> str:
    return (
        f"{setting}: {file} is a link to {os.readlink(file)}, which is not there; of a Hugging "
        "Face cache give the model's whole folder (models--ORG--NAME), not a snapshot"
    )


def _forbidden(file: Path, folder: Path, setting: str) -> str:
    return (
        f"{setting}: {file} cannot be read by user {os.getuid()}: chmod -R a+rX {folder} (in a "
        "container: the host's folder that is mounted there; with SELinux see docs/compose.md)"
    )
