"""Fills a model's weights from a checkpoint, tensor by tensor, or with dummy values from a seed."""

import logging
from collections.abc import Callable
from itertools import groupby

import torch

from engine.errors import CheckpointError
from engine.loading.checkpoint import Entry, open_tensors
from engine.loading.plan import Plan, Target
from engine.loading.staging import copy_to_gpu
from engine.quantized.format import PLAIN, Stored
from engine.quantized.nvfp4_place import Nvfp4Place
from engine.quantized.packed import Packed, matrices

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""A callback, called with (done_bytes, total_bytes) after each tensor."""


def load(
    plan: Plan,
    entries: list[Entry],
    progress: Progress | None = None,
    *,
    stored: Stored = PLAIN,
) -> None:
    """Load every tensor of ``entries`` into its place in ``plan``; matrices that are ``stored``
    quantised become plain.

    On the CPU files are mapped and tensors copied one at a time into their final dtype; to a GPU
    they go through pinned memory (staging.py). Neither holds the model twice. Raises
    CheckpointError naming the tensor, before anything is copied, if a tensor is missing,
    unexpected, stored twice or has the wrong shape.
    """
    if stored.formats:
        keeps = any(isinstance(target, Nvfp4Place) for target in plan.targets.values())
        others = "experts stay in NVFP4, other matrices are" if keeps else "matrices are"
        log.info("weights: %s; %s dequantised as they are read", stored.name, others)
    matched = [
        place
        for source, target in _match(plan, matrices(entries, stored))
        for place in (source.targets(target) if isinstance(source, Packed) else [(source, target)])
    ]
    total = sum(entry.num_bytes for entry, _ in matched)
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if progress is not None:
            progress(done, total)

    device = matched[0][1].device
    if device.type == "cuda":
        copy_to_gpu(matched, device, advance)
        return
    for file, group in groupby(matched, key=lambda pair: pair[0].file):
        with open_tensors(file) as reader:
            for entry, target in group:
                target.copy(reader.get_tensor(entry.name))
                advance(entry.num_bytes)


def draw(plan: Plan, seed: int) -> None:
    """Draw dummy weights, scaled so that activations stay finite and routing is near uniform."""
    generators: dict[torch.device, torch.Generator] = {}
    for target in plan.targets.values():
        device = target.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(seed)
        target.draw(generators[device])


def _match(plan: Plan, entries: list[Entry | Packed]) -> list[tuple[Entry | Packed, Target]]:
    parts = {part: whole for whole, names in plan.split.items() for part in names}
    matched: list[tuple[Entry | Packed, Target]] = []
    seen: dict[str, Entry | Packed] = {}
    for entry in entries:
        name = entry.short_name
        if name in plan.ignored:
            continue
        if name in plan.targets:
            target = plan.targets[name]
        elif name in parts:
            target = plan.split[parts[name]][name]()
        else:
            raise CheckpointError(f"unexpected tensor {entry.name} in {entry.file}")
        if name in seen:
            raise CheckpointError(
                f"duplicate tensor {entry.name} in {entry.file}: "
                f"{seen[name].name} in {seen[name].file} is the same one"
            )
        if entry.dtype not in target.stored:
            raise CheckpointError(
                f"tensor {entry.name} in {entry.file}: dtype {entry.dtype}, by the "
                f"quantization_config expected {' or '.join(target.stored)}"
            )
        if entry.shape != target.shape:
            raise CheckpointError(
                f"tensor {entry.name} in {entry.file}: "
                f"shape {list(entry.shape)}, expected {list(target.shape)}"
            )
        seen[name] = entry
        matched.append((entry, target))
    for whole in plan.targets:
        _require(whole, plan, seen)
    return matched


def _require(whole: str, plan: Plan, seen: dict[str, Entry | Packed]) -> None:
    """Raise CheckpointError unless either ``whole`` or all of its parts are stored."""
    parts = plan.split.get(whole, {})
    present = [part for part in parts if part in seen]
    if whole in seen:
        if present:
            raise CheckpointError(
                f"duplicate tensor {seen[present[0]].name}: {seen[whole].name} already holds it"
            )
    elif not present:
        shape = list(plan.targets[whole].shape)
        raise CheckpointError(f"missing tensor {whole}, expected with shape {shape}")
    elif len(present) < len(parts):
        part = next(part for part in parts if part not in seen)
        raise CheckpointError(
            f"missing tensor {part}, expected with shape {list(parts[part]().shape)}"
        )
