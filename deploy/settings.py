"""The settings of ``baton up``, resolved and checked once.

``resolve`` turns the options (None: not given) into the settings of what is started. Every error is
a ValueError that begins with the name of the setting.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coordinator.core.pool_targets import PoolTargets
from coordinator.record.settings import check_redis_url
from decode.spread_policy import DEFAULT as SPREAD
from decode.spread_policy import require_spread
from deploy.hub_cache import cached_checkpoint, is_model_id
from deploy.ports import require_port
from engine.sampling.acceptance_setting import require_draft_acceptance
from transport.checkpoint_folder import CONFIG, checkpoint_folder, model_name, require_readable

LoadFormat = Literal["auto", "dummy"]
Quantize = Literal["none", "fp8", "fp8-lm-head", "nvfp4", "nvfp4-lm-head", "dequantize"]
Speculate = Literal["auto", "off", "1", "2", "3", "4"]
Overlap = Literal["auto", "on", "off"]
Device = Literal["auto", "cpu", "cuda"]
Role = Literal["split", "colocated", "both"]

PoolsMode = Literal["fixed", "manual", "auto"]
TARGET_TTFT_MS, TARGET_TPOT_MS = 1e3 * PoolTargets.ttft_s, 1e3 * PoolTargets.tpot_s
BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "models" / "tiny"


@dataclass(frozen=True)
class UpSettings:
    """Settings of what ``baton up`` starts: prefill and decode workers, or colocated ones.
    ``device`` is never "auto". ``draft_acceptance``: None unless it is given, for a benchmark.
    ``pools_mode``: "manual" if ``baton scale`` may change the pools,
    "auto" if they follow the load to keep ``target_ttft_ms`` and ``target_tpot_ms``.
    ``host_cache_gb``: 10^9 bytes, for each worker. ``redis_url`` None: a Redis is started."""

    model: Path
    served_model_name: str
    load_format: LoadFormat
    quantize: Quantize
    speculate: Speculate
    draft_acceptance: float | None
    spread: str
    overlap: Overlap
    prefix_cache: bool
    host_cache_gb: float
    device: Literal["cpu", "cuda"]
    num_prefill: int
    num_decode: int
    num_colocated: int
    pools_mode: PoolsMode
    target_ttft_ms: float
    target_tpot_ms: float
    gpu_share: int
    host: str
    port: int
    redis_url: str | None
    drain_timeout_s: float

    @property
    def num_workers(self) -> dict[str, int]:
        """The number of workers of each role."""
        return {
            "prefill": self.num_prefill,
            "decode": self.num_decode,
            "colocated": self.num_colocated,
        }

    @property
    def pools(self) -> str:
        """The number of workers of each role at the start, to show: "2 prefill, 6 decode"."""
        if self.num_colocated:
            return f"{self.num_colocated} colocated"
        return f"{self.num_prefill} prefill, {self.num_decode} decode"


def resolve(
    *,
    num_gpus: int,
    model: Path | None = None,
    served_model_name: str | None = None,
    load_format: LoadFormat = "auto",
    quantize: Quantize = "none",
    speculate: Speculate = "auto",
    draft_acceptance: float | None = None,
    spread: str = SPREAD,
    overlap: Overlap = "auto",
    prefix_cache: bool = True,
    host_cache_gb: float = 0.0,
    device: Device = "auto",
    prefill: int | None = None,
    decode: int | None = None,
    role: Role | None = None,
    workers: int | None = None,
    pools: PoolsMode | None = None,
    target_ttft_ms: float = TARGET_TTFT_MS,
    target_tpot_ms: float = TARGET_TPOT_MS,
    gpu_share: int = 1,
    host: str = "127.0.0.1",
    port: int = 8000,
    redis_url: str | None = None,
    drain_timeout_s: float = 30.0,
) -> UpSettings:
    """Fill in the options that were not given, for ``num_gpus`` GPUs. Raises ValueError."""
    require_port(port)
    if not host:
        raise ValueError("--host: must not be empty")
    if not drain_timeout_s > 0:
        raise ValueError(f"--drain-timeout: must be more than 0 seconds, not {drain_timeout_s:g}")
    require_spread(spread, "--spread")
    if not 0 <= host_cache_gb < math.inf:
        raise ValueError(f"--host-cache: {host_cache_gb:g} GB is negative or not finite")
    if redis_url is not None:
        check_redis_url(redis_url, "--redis-url")
    if served_model_name == "":
        raise ValueError("--served-model-name: must not be empty")
    if draft_acceptance is not None:
        drafts = speculate != "off"
        require_draft_acceptance(
            draft_acceptance, load_format, drafts=drafts, name="--draft-acceptance"
        )
    folder, name = _checkpoint(model, needs_weights=load_format != "dummy")
    on = _device(device, num_gpus)
    if gpu_share < 1:
        raise ValueError(f"--gpu-share: needs at least 1 worker a GPU, not {gpu_share}")
    if overlap == "on" and on == "cpu":
        raise ValueError("--overlap: on divides a GPU, and the workers are on the CPU")
    places = num_gpus * gpu_share if on == "cuda" else 0
    num_prefill, num_decode, num_colocated = _pools(role, prefill, decode, workers, places)
    names = "--target-ttft-ms", "--target-tpot-ms"
    PoolTargets.of_ms(target_ttft_ms, target_tpot_ms, names=names)
    pools_mode = pools or ("auto" if places and num_gpus > 1 and not num_colocated else "fixed")
    if pools_mode != "fixed" and num_colocated:
        raise ValueError(
            f"--pools: {pools!r} is for prefill and decode workers, not colocated ones"
        )
    return UpSettings(
        model=folder,
        served_model_name=served_model_name or name,
        load_format=load_format,
        quantize=quantize,
        speculate=speculate,
        draft_acceptance=draft_acceptance,
        spread=spread,
        overlap=overlap,
        prefix_cache=prefix_cache,
        host_cache_gb=host_cache_gb,
        device=on,
        num_prefill=num_prefill,
        num_decode=num_decode,
        num_colocated=num_colocated,
        pools_mode=pools_mode,
        target_ttft_ms=target_ttft_ms,
        target_tpot_ms=target_tpot_ms,
        gpu_share=gpu_share,
        host=host,
        port=port,
        redis_url=redis_url,
        drain_timeout_s=drain_timeout_s,
    )


def _checkpoint(model: Path | None, *, needs_weights: bool) -> tuple[Path, str]:
    """The folder of the checkpoint, and the name that it is served by: a model id is its own."""
    path = (model or BUNDLED_MODEL).expanduser()
    if is_model_id(path):
        return cached_checkpoint(str(path), "--model", needs_weights=needs_weights), str(path)
    folder = checkpoint_folder(path.absolute(), "--model")
    require_readable(folder, [CONFIG], "--model")
    return folder, model_name(folder)


def _device(device: Device, num_gpus: int) -> Literal["cpu", "cuda"]:
    if device == "auto":
        return "cuda" if num_gpus else "cpu"
    if device == "cuda" and not num_gpus:
        raise ValueError("--device: 'cuda' was asked for, but no NVIDIA GPU is visible here")
    return device


def _pools(
    role: Role | None,
    prefill: int | None,
    decode: int | None,
    workers: int | None,
    places: int,
) -> tuple[int, int, int]:
    """Numbers of prefill, decode and colocated workers for ``places`` on GPUs; 0: on the CPU.

    A single place gets a colocated worker by default: two copies of a large model do not fit.
    """
    if role == "both":  # the former name
        role = "colocated"
    if role is None:
        alone = places == 1 and prefill is None and decode is None
        role = "colocated" if alone else "split"
    if role == "split":
        if workers is not None:
            raise ValueError("--workers: is for --role colocated; say --prefill and --decode")
        return *_split(prefill, decode, places), 0
    for name, number in (("--prefill", prefill), ("--decode", decode)):
        if number is not None:
            raise ValueError(f"{name}: is for --role split; with --role colocated say --workers")
    return 0, 0, _colocated(workers, places)


def _colocated(workers: int | None, places: int) -> int:
    """The number of colocated workers: by default one per place, and one on the CPU."""
    number = (places or 1) if workers is None else workers
    if number < 1:
        raise ValueError(f"--workers: needs at least 1 worker, not {number}")
    if places and number > places:
        raise ValueError(f"--workers: {number} workers{_TOO_MANY.format(places)}")
    return number


def _split(prefill: int | None, decode: int | None, places: int) -> tuple[int, int]:
    """Numbers of prefill and decode workers. By default all places are used, a quarter for prefill
    and at least one for each pool: 1 + 1 of 2 places, 1 + 2 of 3, 1 + 3 of 4, 2 + 6 of 8, and
    1 + 1 on the CPU. If one number is given, the other pool gets the rest."""
    for name, number in (("--prefill", prefill), ("--decode", decode)):
        if number is not None and number < 1:
            raise ValueError(f"{name}: needs at least 1 worker, not {number}")
    if not places:
        return prefill or 1, decode or 1
    if places == 1:
        raise ValueError(
            "--role: one GPU has no room for a prefill and a decode worker by default; "
            "say --role colocated, or --gpu-share 2 to divide its memory, or --device cpu"
        )
    if prefill is None:
        prefill = (places + 2) // 4 or 1 if decode is None else max(places - decode, 1)
    if decode is None:
        decode = max(places - prefill, 1)
    if prefill + decode > places:
        raise ValueError(
            f"--prefill, --decode: {prefill} + {decode} workers{_TOO_MANY.format(places)}"
        )
    return prefill, decode


_TOO_MANY = " need a place on a GPU each, and there are {}; --gpu-share divides a GPU's memory"
