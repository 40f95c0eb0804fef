"""The options of every worker's command line, each also a BATON_* variable of the environment.

They are read here, in ``__main__``'s name, and nowhere else. role_options.py adds each role's.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import torch
import typer

from decode.speculation import max_drafts
from decode.spread_policy import DEFAULT as SPREAD
from decode.spread_policy import spread_on
from decode.spread_table import read
from engine.config import PROMPT_TOKENS, Device, Dtype, EngineConfig, LoadFormat, Overlap, Quantize
from engine.gpu import gpu_name
from engine.spread.shapes import sizes_on
from prefill.limits import PrefillLimits, RoundLimits
from transport.checkpoint_folder import (
    CONFIG,
    checkpoint_folder,
    num_tokenizer_ids,
    require_readable,
    weight_files,
)
from transport.wire.channel_keys import ChannelKeys
from transport.wire.channel_keys import channel_keys as keys_of
from transport.wire.messages import Role
from transport.wire.secret_setting import CHANNEL_SECRET, secret_setting
from worker.capabilities import capabilities_of
from worker.cores import threads_of, usable_cores
from worker.gpu_locks.folder import DEFAULT
from worker.gpu_locks.marks import UNFIT_S
from worker.settings import HandoffSettings, PrefixCacheSettings, WorkerSettings, host_bytes

BATCH_TOKENS = {"cpu": 2048, "cuda": PROMPT_TOKENS}
CPU_PAGES = 1024
CPU_STATE_SLOTS = 64
LOOKAHEAD = {"cpu": 0, "cuda": 1}
"""Default lookahead by device. A launch on the CPU computes; on CUDA it only enqueues, so that the
host can work meanwhile."""


def option(variable: str, help_text: str, *names: str, **more: Any) -> Any:
    """An option of the command line that the environment's ``variable`` can set too."""
    return typer.Option(*names, envvar=variable, help=help_text, **more)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of workers of every role. A role's class may have other ``_limits``
    and ``_any_role``."""

    role: ClassVar[Role]

    coordinator: Annotated[str, option("BATON_COORDINATOR", "The coordinator's ZeroMQ endpoint.")]
    # transport/checkpoint_folder.py explains better than typer's check why it cannot be read.
    model: Annotated[Path, option("BATON_MODEL", "Checkpoint folder.", readable=False)] = Path(
        "models/tiny"
    )
    load_format: Annotated[
        str, option("BATON_LOAD_FORMAT", "auto, or dummy for random weights.")
    ] = "auto"
    device: Annotated[
        str,
        option("BATON_DEVICE", "auto, cpu, cuda (any free GPU), or cuda:N (the Nth in PCI order)."),
    ] = "auto"
    gpu: Annotated[str, option("BATON_GPU", "This GPU: a UUID, its beginning, or N; else any.")] = (
        ""
    )
    gpu_share: Annotated[
        int,
        option(
            "BATON_GPU_SHARE",
            "Workers that share a GPU, each with that part of its memory; all must say so.",
        ),
    ] = 1
    gpu_memory: Annotated[
        float,
        option(
            "BATON_GPU_MEMORY",
            "GiB of the GPU's memory to use at most, as on a smaller card; 0: all.",
        ),
    ] = 0.0
    claim_timeout: Annotated[
        float,
        option("BATON_CLAIM_TIMEOUT", "Seconds to wait for a free GPU; 0: until there is one."),
    ] = 60.0
    gpu_lock_dir: Annotated[
        Path,
        option("BATON_GPU_LOCK_DIR", "Folder of the locks on GPUs, the same for all of a node."),
    ] = DEFAULT
    unfit_gpu: Annotated[
        float, option("BATON_UNFIT_GPU", "Seconds that no worker gets a GPU after a critical Xid.")
    ] = UNFIT_S
    dtype: Annotated[str, option("BATON_DTYPE", "auto, float32 or bfloat16.")] = "auto"
    quantize: Annotated[
        str,
        option(
            "BATON_QUANTIZE",
            "none: weights as they are stored; fp8: large matrices converted to FP8 at load; "
            "fp8-lm-head: lm_head too; "
            "nvfp4: experts NVFP4, other large ones FP8; nvfp4-lm-head: lm_head NVFP4 too; "
            "dequantize: a quantised checkpoint plain.",
        ),
    ] = "none"
    speculate: Annotated[
        str,
        option(
            "BATON_SPECULATE",
            "Tokens that a decode step guesses with the checkpoint's draft layer: auto (as many as "
            "pay), off, or 1 to 4. All workers must say the same.",
        ),
    ] = "auto"
    draft_acceptance: Annotated[
        float | None,
        option(
            "BATON_DRAFT_ACCEPTANCE",
            "Benchmarks with random weights: accept each draft with this probability, from 0 to 1. "
            "Needs --load-format dummy; all workers must say the same.",
        ),
    ] = None
    spread: Annotated[
        str,
        option(
            "BATON_SPREAD",
            "Compute decode steps together with the other workers of the node: auto (where it "
            "pays; off without a second GPU), off, or from so many tokens of all their steps on.",
        ),
    ] = SPREAD
    spread_table: Annotated[
        Path | None,
        option(
            "BATON_SPREAD_TABLE",
            "What spread steps take on these GPUs, of python -m bench.spread_step --table; "
            "without it, see --spread-trials.",
        ),
    ] = None
    spread_trials: Annotated[
        bool,
        option(
            "BATON_SPREAD_TRIALS",
            "Time a few local and spread steps while a new spread group is idle, and keep the "
            "times beside compiled kernels; without, the times that Baton brings are used.",
        ),
    ] = True
    overlap: Annotated[
        str,
        option(
            "BATON_OVERLAP",
            "Compute long prompts beside decode steps, each on its part of the GPU, instead of "
            "between them: auto (where a worker can), on (or else it does not start), off.",
        ),
    ] = "auto"
    prefix_cache: Annotated[
        bool,
        option("BATON_PREFIX_CACHE", "Keep prefixes of prompts and answers for later prompts."),
    ] = True
    host_cache_gb: Annotated[
        float,
        option("BATON_HOST_CACHE_GB", "GB of pinned memory for kept prefixes.", "--host-cache"),
    ] = 0.0
    page_size: Annotated[int, option("BATON_PAGE_SIZE", "Tokens a page.")] = 64
    num_pages: Annotated[
        int, option("BATON_NUM_PAGES", "Pages in the pool; 0: what fits on a GPU, 1024 on a CPU.")
    ] = 0
    num_state_slots: Annotated[
        int,
        option(
            "BATON_NUM_STATE_SLOTS",
            "Sequences the pool holds at most; 0: what fits on a GPU up to 256, 64 on a CPU.",
        ),
    ] = 0
    lookahead: Annotated[
        int | None,
        option(
            "BATON_LOOKAHEAD",
            "Steps launched ahead of the host: 0 or 1; without it 1 on a GPU, 0 on a CPU.",
        ),
    ] = None
    max_batch_tokens: Annotated[
        int,
        option("BATON_MAX_BATCH_TOKENS", "Prompt tokens a batch; 0: 8192 on a GPU, 2048 on a CPU."),
    ] = 0
    max_batch_rows: Annotated[
        int,
        option(
            "BATON_MAX_BATCH_ROWS",
            "Prompts a batch; 1: each is computed alone, apart from decode steps too.",
        ),
    ] = 16
    max_tokens_beside_decode: Annotated[
        int,
        option(
            "BATON_MAX_TOKENS_BESIDE_DECODE",
            "Prompt tokens a batch while sequences are decoded: fewer for an even pace of tokens, "
            "more for prompts that are done sooner. In a burst of prompts it is off.",
        ),
    ] = 2048
    threads: Annotated[
        int, option("BATON_THREADS", "torch threads; 0: the cores, divided by --host-workers.")
    ] = 0
    host_workers: Annotated[
        int, option("BATON_HOST_WORKERS", "Workers that share the cores of this host.")
    ] = 1
    drain_timeout: Annotated[
        float, option("BATON_DRAIN_TIMEOUT", "Seconds to finish after SIGTERM.")
    ] = 30.0
    stall_timeout: Annotated[
        float,
        option(
            "BATON_STALL_TIMEOUT",
            "Seconds a worker may stand still before it ends itself; 0: for ever.",
        ),
    ] = 60.0
    offer_ttl: Annotated[float, option("BATON_OFFER_TTL", "Seconds an offer may wait.")] = 600.0
    pull_timeout: Annotated[
        float, option("BATON_PULL_TIMEOUT", "Seconds that a copy, and the room for it, may take.")
    ] = 10.0
    verify_handoff: Annotated[
        bool, option("BATON_VERIFY_HANDOFF", "Digest every handoff, move and pull (tests).")
    ] = False
    poison: Annotated[bool, option("BATON_POISON", "Fill freed cache memory with NaN (tests).")] = (
        False
    )
    log_level: Annotated[str, option("BATON_LOG_LEVEL", "debug, info, warning …")] = "info"
    log_json: Annotated[bool, option("BATON_LOG_JSON", "One JSON object a line.")] = False

    def settings(self) -> WorkerSettings:
        """The settings that the command line and the environment give; raises ValueError naming a
        setting."""
        engine = self._engine()
        return WorkerSettings(
            self.role,
            self.coordinator,
            engine,
            self._limits(engine.device),
            self._handoff(),
            lookahead=LOOKAHEAD[engine.device] if self.lookahead is None else self.lookahead,
            threads=threads_of(self.threads, self.host_workers, usable_cores()),
            drain_timeout_s=self.drain_timeout,
            gpu=gpu_name(self.device, self.gpu),
            channel_keys=channel_keys(),
            claim_timeout_s=self.claim_timeout,
            stall_timeout_s=self.stall_timeout,
            gpu_lock_dir=self.gpu_lock_dir,
            unfit_gpu_s=self.unfit_gpu,
            speculate=self.speculate,
            spread=self._spread(engine.device),
            spread_table=read(self.spread_table) if self.spread_table else None,
            spread_trials=self.spread_trials,
            prefix_cache=PrefixCacheSettings(self.prefix_cache, host_bytes(self.host_cache_gb)),
            any_role=self._any_role(),
        )

    def _limits(self, device: Device) -> RoundLimits:
        tokens = self.max_batch_tokens or BATCH_TOKENS[device]
        return RoundLimits(
            PrefillLimits(tokens, self.max_batch_rows), self.max_tokens_beside_decode
        )

    def _max_prompt_tokens(self) -> int:
        """Prompt tokens of a pass for which memory is kept free on a GPU."""
        return self.max_batch_tokens or PROMPT_TOKENS

    def _handoff(self) -> HandoffSettings:
        return HandoffSettings(self.offer_ttl, self.pull_timeout, self.verify_handoff)

    def _any_role(self) -> bool:
        return False

    def _spread(self, device: Device) -> str:
        return spread_on(self.spread, device, _num_gpus(device))

    def _engine(self) -> EngineConfig:
        device = self.device
        any_role = self._any_role()
        capabilities = capabilities_of(self.role, any_role=any_role)
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        device = device.partition(":")[0]
        model = checkpoint_folder(self.model)
        require_readable(model, [CONFIG])
        if self.load_format != "dummy":
            require_readable(model, weight_files(model))
        return EngineConfig(
            model_dir=model,
            load_format=cast(LoadFormat, self.load_format),
            dtype=cast(Dtype, self.dtype),
            device=cast(Device, device),
            page_size=self.page_size,
            num_pages=self.num_pages or (CPU_PAGES if device == "cpu" else None),
            num_state_slots=self.num_state_slots or (CPU_STATE_SLOTS if device == "cpu" else None),
            quantize=cast(Quantize, self.quantize),
            max_drafts=max_drafts(self.speculate, device),
            draft_acceptance=self.draft_acceptance,
            poison=self.poison,
            decodes=capabilities.decodes,
            prefills=capabilities.computes_prompts,
            num_valid_ids=num_tokenizer_ids(model),
            gpu_share=self.gpu_share,
            gpu_memory=self.gpu_memory or None,
            max_prompt_tokens=self._max_prompt_tokens(),
            prompts_apart=self.max_batch_rows == 1,
            spread=self._spread(cast(Device, device)) != "off",
            group_sizes=sizes_on(max(2, _num_gpus(cast(Device, device)))),
            any_role=any_role,
            overlap=cast(Overlap, self.overlap),
        )


def _num_gpus(device: Device) -> int:
    """The GPUs that this process sees, if it computes on one."""
    return torch.cuda.device_count() if device == "cuda" else 0


def channel_keys() -> ChannelKeys | None:
    """The channel keys of the secret in the environment; raises ValueError naming the setting."""
    return keys_of(secret_setting(os.environ, CHANNEL_SECRET))
