"""Runs a worker process from its settings to its end.

claim    on a GPU machine: a GPU, by a lock file (gpu_locks/)
load     weights and cache, in memory that peers can open
join     hello to the coordinator, welcome
serve    the worker loop (loop.py) around the worker's own part (worker.py)
leave    goodbye; the exported memory is withdrawn once peers had time to unmap it
"""

import logging
import os
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from secrets import token_hex

import torch

from decode.speculation import DraftPolicy, draft_policy
from engine import gpu
from engine.runner import Engine
from telemetry.notify import Progress, notify
from telemetry.nvml import local_gpus
from transport.copy.host_copy import HostCopier, NoHostMemory
from transport.copy.memory import OwnMemory, copy_stream, host_copier, own_memory
from transport.copy.pull import CopyStream, NoPeers
from transport.copy.selftest import write_pattern
from transport.wire.channel import WorkerChannel
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import Hello
from transport.wire.session import Session
from worker.gpu_locks.claim import claim_gpu
from worker.gpu_locks.folder import LockFolder
from worker.gpu_locks.marks import mark_unfit
from worker.gpu_watch import GpuWatch, NoWatch
from worker.loop import Supervisor, WorkerLoop
from worker.room import Room
from worker.settings import WorkerSettings
from worker.spread.either_place import EitherPlace
from worker.spread.group import Alone, Group
from worker.spread.kept_tables import KeptTables
from worker.spread.lender import Lender
from worker.spread.membership import Membership
from worker.spread.records import OwnRecord, Records
from worker.spread.step_times import FixedTimes, StepTimes
from worker.spread.trial import Engines
from worker.spread.trials import StepTrials
from worker.stall import END_S, StallGuard, end_within
from worker.worker import Worker

AWAKE_S = 0.1
"""How long to wait without sleep for an announced handoff: as long as the last chunk of a prompt
takes. This keeps a core of a worker with a GPU busy."""

log = logging.getLogger(__name__)


def serve(settings: WorkerSettings) -> None:
    """Run one worker until it is told to stop. Raises ValueError (settings, checkpoint, memory),
    NoFreeGpu, GpuMemoryHeld, JoinRefused, ChannelRefused, DeadlineExceeded, ExportLost,
    SharedMemoryFull, ProtocolMismatch."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device, capabilities = settings.engine.device, settings.capabilities
    instance = f"{'worker' if settings.any_role else settings.role}-{token_hex(4)}"
    with ExitStack() as cleanup:
        channel = WorkerChannel(settings.coordinator, instance, keys=settings.channel_keys)
        cleanup.callback(channel.close)
        claimed = _claim(instance, settings)
        memory = own_memory(device, instance)
        cleanup.callback(memory.close)

        report = Progress("loading weights")

        def loaded(done: int, total: int) -> None:
            report(done / total)
            channel.receive(0.0)  # raises ChannelRefused now, instead of after minutes of loading

        engine = Engine.load(settings.engine, memory.allocate, progress=loaded)
        write_pattern(engine.cache, instance)
        drafts = draft_policy(settings.speculate, engine.max_drafts, device)
        group = _spread_group(settings, engine, instance, drafts)
        cleanup.callback(group.close)
        hello = _hello(settings, instance, engine, memory, claimed, group)
        session = Session(channel, hello, time.monotonic)
        puller, host = _copiers(settings, engine)
        room = Room(
            engine,
            session.send,
            settings.serving(instance, awake_s=0.0 if device == "cpu" else AWAKE_S),
            puller,
            host=host,
            drafts=drafts,
        )
        worker = Worker(room, session, group)
        cleanup.callback(worker.close)
        watch = _watch(claimed, settings) if claimed else NoWatch()
        cleanup.callback(watch.close)
        cleanup.callback(end_within, END_S)
        WorkerLoop(
            session,
            worker,
            watch,
            StallGuard(settings.stall_timeout_s),
            Supervisor(),
            drain_timeout_s=settings.drain_timeout_s,
            memory_lost=memory.lost if capabilities.offers else lambda: "",
        ).run()
        memory.await_unmapped()


def _claim(instance: str, settings: WorkerSettings) -> str:
    """Claim a GPU until this process ends, make it the current one, and return its UUID; "" on the
    CPU."""
    if settings.engine.device == "cpu":
        return ""
    seen = gpu.visible_gpus()
    wanted = [each.uuid for each in gpu.named(settings.gpu, seen)]

    def report_holders(reason: str) -> None:
        log.warning("no GPU is free; this worker waits for one: %s", reason)
        notify(STATUS=f"waiting for a GPU: {reason}")

    claimed = claim_gpu(
        LockFolder(settings.gpu_lock_dir),
        wanted,
        settings.engine.gpu_share,
        instance,
        timeout_s=settings.claim_timeout_s,
        on_waiting=report_holders,
    ).gpu
    (index,) = (each.index for each in seen if each.uuid == claimed)
    log.info("GPU %d, %s", index, claimed)
    torch.cuda.set_device(index)
    return claimed


def _copiers(settings: WorkerSettings, engine: Engine) -> tuple[CopyStream, HostCopier]:
    """What copies from peers, and what copies prefixes to and from host memory."""
    device, prefix_cache = settings.engine.device, settings.prefix_cache
    poisoned, after = engine.config.poison, engine.epoch_stream
    puller: CopyStream = NoPeers()
    if settings.capabilities.decodes or prefix_cache.enabled:
        puller = copy_stream(device, engine.cache, poisoned=poisoned, after=after)
    host: HostCopier = NoHostMemory()
    for_prompts = prefix_cache.enabled and settings.capabilities.computes_prompts
    if prefix_cache.host_bytes and for_prompts:
        host = host_copier(
            device, engine.cache, prefix_cache.host_bytes, poisoned=poisoned, after=after
        )
    return puller, host


def _watch(claimed: str, settings: WorkerSettings) -> GpuWatch:
    mark = partial(mark_unfit, settings.gpu_lock_dir, claimed, for_s=settings.unfit_gpu_s)
    return GpuWatch(lambda: local_gpus(claimed), on_unfit=mark)


def _spread_group(
    settings: WorkerSettings, engine: Engine, instance: str, drafts: DraftPolicy
) -> Group:
    """The worker's part in spread groups, if the setting and the engine allow spread steps."""
    if settings.spread == "off":
        return Alone()
    if not settings.capabilities.decodes and engine.lending is not None:
        return Lender(engine.lending, instance, Records(OwnRecord(instance)))
    if engine.spread is None:
        level = logging.DEBUG if settings.spread == "auto" else logging.WARNING
        why = "that takes a GPU, Triton kernels and a model that the engine's log does not refuse"
        log.log(level, "spread: this worker takes no spread steps: %s", why)
        return Alone()
    step_times: StepTimes = FixedTimes(settings.spread_table)
    if settings.spread_table is None and settings.spread_trials:
        engines = Engines(engine, engine.spread)
        step_times = StepTrials(engines, _kept_tables(engine), instance)
    records = Records(OwnRecord(instance))
    member = Membership(
        engine.spread, instance, settings.spread, records,
        drafts=drafts, step_times=step_times,
    )  # fmt: skip
    if engine.lending is None:
        return member
    return EitherPlace(instance, member, Lender(engine.lending, instance, records))


def _kept_tables(engine: Engine) -> KeptTables:
    """The tables of step times of this node, in the folder of Triton's cache: those of workers with
    this engine's GPU, model, weights, kernels and drafts."""
    from triton import knobs  # not on a machine without GPUs

    from engine.kernels.compiling.variants import current_sources

    config = engine.config
    of = (
        f"{torch.cuda.get_device_name()}, model {engine.fingerprint}, {config.kv_dtype}, "
        f"weights {engine.model_config.quantization.source}, drafts {engine.max_drafts}, "
        f"kernels {current_sources()}"
    )
    return KeptTables(Path(knobs.cache.dir), of)


def _hello(
    settings: WorkerSettings,
    instance: str,
    engine: Engine,
    memory: OwnMemory,
    claimed: str,
    group: Group,
) -> Hello:
    layout, pools = engine.layout, engine.pools
    pool_tokens = pools.num_pages * layout.page_size
    return Hello(
        instance=instance,
        role=settings.role,
        other_roles=settings.capabilities.other_roles,
        model=engine.fingerprint,
        device=engine.config.device,
        pid=os.getpid(),
        max_seq_len=min(engine.model_config.max_position_embeddings, pool_tokens),
        max_running=pools.num_state_slots,
        memory=MemoryExport(
            kind=memory.kind,
            handle=memory.handle,
            size_bytes=memory.size_bytes,
            layout=layout,
            pools=pools,
        ),
        gpu=claimed,
        spread=group.export,
        draft_acceptance=engine.config.draft_acceptance,
    )
