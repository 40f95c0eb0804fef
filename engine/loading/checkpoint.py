"""Lists the tensors of a Hugging Face checkpoint folder, and where they are, before any is read."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import CheckpointError
from engine.model.quantization import PREFIX

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
}
VISION = re.compile(r"^(model\.)?(visual|vision_tower|multi_modal_projector)\.")
MTP = "mtp."
"""Prefix of the names of a draft layer's tensors."""
MTP_FILE = "mtp.safetensors"
"""The file in which some releases keep a draft layer's tensors, outside of the index."""
HASHED_BYTES = 4096


@dataclass(frozen=True)
class Entry:
    """One stored tensor: its full name, its file, its shape and dtype as the header has them, and
    the byte of the file where it begins."""

    name: str
    file: Path
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def short_name(self) -> str:
        """The name without its prefix, which depends on whether the checkpoint is multimodal."""
        return PREFIX.sub("", self.name)

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * DTYPES[self.dtype].itemsize


def read_entries(folder: Path, *, mtp: bool = False) -> list[Entry]:
    """Every text tensor of ``folder`` in file order, without vision tensors, and without a draft
    layer's unless ``mtp``.

    Raises CheckpointError for a missing or truncated file, an index that disagrees with its
    shards, a tensor stored twice and a dtype the engine cannot load.
    """
    listed = _weight_map(folder)
    found: dict[str, Entry] = {}
    files = [*dict.fromkeys(listed.values())] if listed else [folder / SINGLE]
    apart = folder / MTP_FILE
    if mtp and apart.is_file() and apart not in files:
        files.append(apart)
    for file in files:
        for entry in _file_entries(file):
            if listed and file != apart and entry.name not in listed:
                raise CheckpointError(f"unexpected tensor {entry.name}: {file} has it, {INDEX} not")
            if entry.name in found:
                raise CheckpointError(
                    f"duplicate tensor {entry.name}: in {found[entry.name].file} and {file}"
                )
            found[entry.name] = entry
    for name, file in listed.items():
        if name not in found or found[name].file != file:
            raise CheckpointError(f"missing tensor {name}: {INDEX} expects it in {file}")
    entries = [entry for entry in found.values() if not VISION.match(entry.name)]
    if not mtp:
        entries = [entry for entry in entries if not entry.name.startswith(MTP)]
    for entry in entries:
        if entry.dtype not in DTYPES:
            raise CheckpointError(
                f"tensor {entry.name}: dtype {entry.dtype} in {entry.file}, "
                f"expected one of {', '.join(DTYPES)}"
            )
    return entries


def has_draft_layer(entries: list[Entry]) -> bool:
    """True if the checkpoint holds an MTP layer; its config may name one that was left out."""
    return any(entry.name.startswith(MTP) for entry in entries)


@contextmanager
def open_tensors(file: Path) -> Iterator[Any]:
    """Open safetensors' reader over a mapped file; its errors become CheckpointError."""
    if not file.is_file():
        raise CheckpointError(f"missing file {file}")
    try:
        with safe_open(file, framework="pt") as reader:
            yield reader
    except (SafetensorError, OSError) as error:
        size = file.stat().st_size
        raise CheckpointError(f"cannot read {file} ({size} bytes): {error}") from error


def fingerprint(config: object, entries: list[Entry]) -> str:
    """A digest, 16 hex digits, that two workers share if they serve the same weights.

    It covers the config (its repr: a frozen dataclass), and every tensor's name, shape, dtype and
    the HASHED_BYTES in its middle, which differ between fine-tunes of one base.
    """
    digest = hashlib.sha256(repr(config).encode())
    with ExitStack() as stack:
        files = {
            file: stack.enter_context(file.open("rb")) for file in {entry.file for entry in entries}
        }
        for entry in sorted(entries, key=lambda entry: entry.name):
            digest.update(f"{entry.name} {entry.shape} {entry.dtype}\n".encode())
            digest.update(_middle(entry, files[entry.file].fileno()))
    return digest.hexdigest()[:16]


def _middle(entry: Entry, descriptor: int) -> bytes:
    length = min(HASHED_BYTES, entry.num_bytes)
    begin = entry.offset + (entry.num_bytes - length) // 2
    found = os.pread(descriptor, length, begin)
    if len(found) < length:
        raise CheckpointError(f"cannot read {entry.name}: {entry.file} ends early")
    return found


def _weight_map(folder: Path) -> dict[str, Path]:
    """Tensor name to shard, from the index; empty when the folder has none."""
    index = folder / INDEX
    if not index.is_file():
        return {}
    try:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in names.items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index} is no safetensors index: {error!r}") from error


def _file_entries(file: Path) -> Iterator[Entry]:
    with open_tensors(file) as reader:
        names = list(reader.keys())
    # The reader has checked the file, but does not say where a tensor begins.
    with file.open("rb") as content:
        header_len = int.from_bytes(content.read(8), "little")
        header = json.loads(content.read(header_len))
    for name in names:
        tensor = header[name]
        offset = 8 + header_len + tensor["data_offsets"][0]
        yield Entry(name, file, tuple(tensor["shape"]), tensor["dtype"], offset)
