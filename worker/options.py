"""Command-line options that both kinds of worker share, each also a BATON_* variable.

Read here, in ``__main__``'s name, and nowhere else.
"""

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast

import torch
import typer

from engine.config import Device as DeviceName
from engine.config import Dtype as DtypeName
from engine.config import EngineConfig
from engine.config import LoadFormat as LoadFormatName
from engine.config import Quantize as QuantizeName
from telemetry.last_words import CANNOT_START, TRY_AGAIN, say_why
from telemetry.logs import configure_logging
from transport.checkpoint_folder import (
    CONFIG,
    checkpoint_folder,
    require_readable,
    weight_files,
)
from transport.wire.channel_keys import SECRET, ChannelKeys
from transport.wire.channel_keys import channel_keys as keys_of
from transport.wire.errors import BatonError, SharedMemoryFull
from transport.wire.secret_setting import secret_setting
from worker.cores import threads_of, usable_cores
from worker.start import WorkerSettings

Coordinator = Annotated[
    str, typer.Option(envvar="BATON_COORDINATOR", help="The coordinator's ZeroMQ endpoint.")
]
# Whether it can be read transport/checkpoint_folder.py says better than an option's check.
Model = Annotated[
    Path, typer.Option(envvar="BATON_MODEL", readable=False, help="Checkpoint folder.")
]
LoadFormat = Annotated[
    str, typer.Option(envvar="BATON_LOAD_FORMAT", help="auto, or dummy for random weights.")
]
Device = Annotated[
    str,
    typer.Option(
        envvar="BATON_DEVICE",
        help="auto, cpu, cuda (any free GPU), or cuda:N (the Nth in PCI order).",
    ),
]
GpuName = Annotated[
    str,
    typer.Option(envvar="BATON_GPU", help="This GPU: a UUID, its beginning, or N; else any."),
]
GpuShare = Annotated[
    int,
    typer.Option(
        envvar="BATON_GPU_SHARE",
        help="Workers that share a GPU, each with that part of its memory; all must say so.",
    ),
]
Dtype = Annotated[str, typer.Option(envvar="BATON_DTYPE", help="auto, float32 or bfloat16.")]
Quantize = Annotated[
    str,
    typer.Option(
        envvar="BATON_QUANTIZE",
        help="none: weights as they are stored; fp8: large matrices converted to FP8 at load.",
    ),
]
PageSize = Annotated[int, typer.Option(envvar="BATON_PAGE_SIZE", help="Tokens a page.")]
NumPages = Annotated[
    int,
    typer.Option(
        envvar="BATON_NUM_PAGES",
        help="Pages in the pool; 0: what fits on a GPU, 1024 on a CPU.",
    ),
]
NumStateSlots = Annotated[
    int,
    typer.Option(
        envvar="BATON_NUM_STATE_SLOTS",
        help="Sequences the pool holds at most; 0: what fits on a GPU up to 256, 64 on a CPU.",
    ),
]
MaxBatchRows = Annotated[int, typer.Option(envvar="BATON_MAX_BATCH_ROWS", help="Prompts a batch.")]
MaxBatchTokens = Annotated[
    int,
    typer.Option(
        envvar="BATON_MAX_BATCH_TOKENS",
        help="Prompt tokens a batch; 0: 8192 on a GPU, 2048 on a CPU.",
    ),
]
Lookahead = Annotated[
    int | None,
    typer.Option(
        envvar="BATON_LOOKAHEAD",
        help="Steps launched ahead of the host: 0 or 1; without it 1 on a GPU, 0 on a CPU.",
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        envvar="BATON_THREADS", help="torch threads; 0: the cores, divided by --host-workers."
    ),
]
HostWorkers = Annotated[
    int,
    typer.Option(envvar="BATON_HOST_WORKERS", help="Workers that share the cores of this host."),
]
ClaimTimeout = Annotated[
    float,
    typer.Option(
        envvar="BATON_CLAIM_TIMEOUT",
        help="Seconds to wait for a free GPU; 0: until there is one.",
    ),
]
DrainTimeout = Annotated[
    float, typer.Option(envvar="BATON_DRAIN_TIMEOUT", help="Seconds to finish after SIGTERM.")
]
StallTimeout = Annotated[
    float,
    typer.Option(
        envvar="BATON_STALL_TIMEOUT",
        help="Seconds a worker may stand still before it ends itself; 0: for ever.",
    ),
]
LogLevel = Annotated[str, typer.Option(envvar="BATON_LOG_LEVEL", help="debug, info, warning …")]
LogJson = Annotated[bool, typer.Option(envvar="BATON_LOG_JSON", help="One JSON object a line.")]
Poison = Annotated[
    bool, typer.Option(envvar="BATON_POISON", help="Fill freed cache memory with NaN (tests).")
]
VerifyHandoff = Annotated[
    bool, typer.Option(envvar="BATON_VERIFY_HANDOFF", help="Digest every handoff (tests).")
]

CPU_PAGES = 1024
CPU_STATE_SLOTS = 64
BATCH_TOKENS = {"cpu": 2048, "cuda": 8192}
LOOKAHEAD = {"cpu": 0, "cuda": 1}
"""A launch on the CPU computes; on CUDA it only enqueues, so that the host works meanwhile."""


def engine_config(
    model: Path,
    load_format: str,
    device: str,
    dtype: str,
    page_size: int,
    num_pages: int,
    num_state_slots: int,
    poison: bool,
    gpu_share: int,
    quantize: str,
    *,
    decodes: bool = True,
    prefills: bool = True,
) -> EngineConfig:
    """The engine's settings as the command line gave them; raises ValueError naming one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = device.partition(":")[0]
    model = checkpoint_folder(model)
    require_readable(model, [CONFIG])
    if load_format != "dummy":
        require_readable(model, weight_files(model))
    return EngineConfig(
        model_dir=model,
        load_format=cast(LoadFormatName, load_format),
        dtype=cast(DtypeName, dtype),
        device=cast(DeviceName, device),
        page_size=page_size,
        num_pages=num_pages or (CPU_PAGES if device == "cpu" else None),
        num_state_slots=num_state_slots or (CPU_STATE_SLOTS if device == "cpu" else None),
        quantize=cast(QuantizeName, quantize),
        poison=poison,
        decodes=decodes,
        prefills=prefills,
        num_valid_ids=num_tokenizer_ids(model),
        gpu_share=gpu_share,
    )


def gpu_name(device: str, gpu: str) -> str:
    """Which GPU was asked for, "" for any; raises ValueError where the two settings differ."""
    _, colon, number = device.partition(":")
    if colon and not (device.startswith("cuda:") and number.isdecimal()):
        raise ValueError(f"device: {device!r} is not auto, cpu, cuda or cuda:N")
    if number and gpu and gpu != number:
        raise ValueError(f"gpu: {gpu!r} was asked for, and by device {device!r}")
    return gpu or number


def channel_keys() -> ChannelKeys | None:
    """What lets this worker join, from the environment alone; raises ValueError naming it."""
    return keys_of(secret_setting(os.environ, SECRET))


def batch_tokens_on(device: str, max_batch_tokens: int) -> int:
    """The setting, or for 0 what suits the device: from there on a larger batch gains little."""
    return max_batch_tokens or BATCH_TOKENS[device]


def lookahead_on(device: str, lookahead: int | None) -> int:
    """The setting, or what suits the device."""
    return LOOKAHEAD[device] if lookahead is None else lookahead


def worker_settings(
    coordinator: str,
    engine: EngineConfig,
    lookahead: int | None,
    threads: int,
    host_workers: int,
    drain_timeout: float,
    device: str,
    gpu: str,
    claim_timeout: float,
    stall_timeout: float,
) -> WorkerSettings:
    """A worker's settings beside its engine's, from the command line and the environment; raises
    ValueError naming one."""
    return WorkerSettings(
        coordinator,
        engine,
        lookahead_on(engine.device, lookahead),
        threads_of(threads, host_workers, usable_cores()),
        drain_timeout,
        gpu=gpu_name(device, gpu),
        channel_keys=channel_keys(),
        claim_timeout_s=claim_timeout,
        stall_timeout_s=stall_timeout,
    )


def num_tokenizer_ids(model: Path) -> int | None:
    """One more than the highest id of the folder's ``tokenizer.json``; None without one. Ids
    from there on are padding of the vocabulary."""
    path = model / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
        ids = [*content["model"]["vocab"].values()]
        ids += [token["id"] for token in content.get("added_tokens", ())]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"model: {path} is not a readable tokenizer: {error}") from None
    return int(max(ids)) + 1


def run_service(service: str, log_level: str, log_json: bool, main: Callable[[], None]) -> None:
    """Run ``main``; what a user can mend ends the process with one line and status 2, or 75 for
    shared memory that is full, as it may not be later. What has been imported is never searched
    for garbage again, at the end of the process neither."""
    gc.freeze()
    gc.enable()
    configure_logging(service, log_level, log_json)
    # Before CUDA is first used: a number must name the same GPU here as in nvidia-smi.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    try:
        main()
    except (ValueError, OSError, BatonError) as error:
        say_why(service, error)
        is_full = isinstance(error, SharedMemoryFull)
        raise typer.Exit(TRY_AGAIN if is_full else CANNOT_START) from None
