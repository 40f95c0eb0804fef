"""``python -m coordinator``: HTTP for clients, ZeroMQ for workers.

Secrets have no option, only an environment variable: every user can read a command line.
"""

import gc

gc.disable()  # until all is imported: nothing that imports make is garbage, and searches take long

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from coordinator.core.open_tokens import memory_bytes, tokens_that_fit
from coordinator.core.pool_targets import PoolTargets
from coordinator.core.settings import HubSettings
from coordinator.http.allowed_hosts import served_hosts
from coordinator.http.auth.api_keys import parse_api_keys
from coordinator.http.cache_salt import Isolation
from coordinator.http.http_settings import HttpSettings
from coordinator.http.root_path import checked_root_path
from coordinator.record.redis_link import RedisUnavailable
from coordinator.record.settings import PASSWORD, ResponseLimits
from coordinator.server import CoordinatorSettings, serve
from telemetry.last_words import CANNOT_START, TRY_AGAIN, log_fatal, run_command
from telemetry.listen_fds import inherited_listener
from telemetry.logs import configure_logging
from transport.checkpoint_folder import (
    CONFIG,
    TOKENIZER,
    checkpoint_folder,
    model_name,
    require_readable,
)
from transport.wire.channel_keys import channel_keys
from transport.wire.errors import BatonError
from transport.wire.secret_setting import CHANNEL_SECRET, secret_setting

API_KEYS = "BATON_API_KEYS"
_TARGETS = "BATON_TARGET_TTFT_MS", "BATON_TARGET_TPOT_MS"
_MIN_HELD_BODY_BYTES = 64 * 1024 * 1024  # one client has half of it: the largest body


def _option(variable: str, help_text: str, **more: Any) -> Any:
    return typer.Option(envvar=variable, help=help_text, **more)


def main(
    # Whether it can be read transport/checkpoint_folder.py says better than an option's check.
    model: Annotated[
        Path, _option("BATON_MODEL", "Checkpoint folder with the tokenizer.", readable=False)
    ],
    redis_url: Annotated[str, _option("BATON_REDIS_URL", "redis://, rediss:// or unix://")],
    bind: Annotated[
        str, _option("BATON_BIND", "ZeroMQ endpoint for the workers.")
    ] = "tcp://127.0.0.1:5555",
    host: Annotated[str, _option("BATON_HOST", "HTTP address.")] = "127.0.0.1",
    port: Annotated[int, _option("BATON_PORT", "HTTP port; 0: any.")] = 8000,
    served_model_name: Annotated[
        str, _option("BATON_SERVED_MODEL_NAME", "Default: the folder's name.")
    ] = "",
    heartbeat: Annotated[float, _option("BATON_HEARTBEAT", "Seconds between heartbeats.")] = 1.0,
    dead_after: Annotated[
        float, _option("BATON_DEAD_AFTER", "Seconds of silence that mean dead.")
    ] = 10.0,
    max_open: Annotated[
        int, _option("BATON_MAX_OPEN", "Requests open at a time; beyond: 503.")
    ] = 16_384,
    max_open_tokens: Annotated[
        int,
        _option(
            "BATON_MAX_OPEN_TOKENS",
            "Tokens that open requests may hold; beyond: 503. 0: an eighth of the memory.",
        ),
    ] = 0,
    max_prompt_logprobs: Annotated[
        int,
        _option(
            "BATON_MAX_PROMPT_LOGPROBS",
            "Log-probabilities of prompts that an answer may have; beyond: 400.",
        ),
    ] = HttpSettings.max_prompt_logprobs,
    silence_timeout: Annotated[
        float,
        _option(
            "BATON_SILENCE_TIMEOUT",
            "Seconds a request may go without a token or other progress at its worker.",
        ),
    ] = 300.0,
    queue_timeout: Annotated[
        float, _option("BATON_QUEUE_TIMEOUT", "Seconds a request may wait for a worker.")
    ] = 1_800.0,
    request_timeout: Annotated[
        float, _option("BATON_REQUEST_TIMEOUT", "Seconds a request may take in all; 0: any.")
    ] = 0.0,
    drain_timeout: Annotated[
        float, _option("BATON_DRAIN_TIMEOUT", "Seconds to finish after SIGTERM.")
    ] = 30.0,
    hand_over: Annotated[
        bool,
        _option(
            "BATON_HAND_OVER",
            "A proxy in front waits while this process restarts: on SIGTERM close the port, rather "
            "than answer 503.",
        ),
    ] = False,
    allowed_origins: Annotated[
        str,
        _option(
            "BATON_ALLOWED_ORIGINS",
            "Origins whose pages may call the API, separated by commas; *: all.",
        ),
    ] = "",
    allowed_hosts: Annotated[
        str,
        _option(
            "BATON_ALLOWED_HOSTS",
            "Host names to serve besides localhost, separated by commas; *: all. Default: all with "
            "API keys or at a public address, else none.",
        ),
    ] = "",
    operator_keys: Annotated[
        str,
        _option(
            "BATON_OPERATOR_KEYS",
            "Names of the API keys that may change the pools, separated by commas.",
        ),
    ] = "",
    pools: Annotated[
        str,
        _option("BATON_POOLS", "auto: the pools follow the load, to keep the two targets below."),
    ] = "manual",
    target_ttft_ms: Annotated[
        float, _option(_TARGETS[0], "Time to first token that requests shall keep.")
    ] = 1e3 * PoolTargets.ttft_s,
    target_tpot_ms: Annotated[
        float, _option(_TARGETS[1], "Time a token that requests shall keep.")
    ] = 1e3 * PoolTargets.tpot_s,
    root_path: Annotated[
        str,
        _option("BATON_ROOT_PATH", "The path below which a proxy serves the API, such as /baton."),
    ] = "",
    prefix_cache_isolation: Annotated[
        Isolation,
        _option(
            "BATON_PREFIX_CACHE_ISOLATION",
            "key: only requests of one API key share prefixes; off: all do.",
        ),
    ] = "off",
    response_ttl: Annotated[
        int,
        _option(
            "BATON_RESPONSE_TTL",
            "Seconds for which a response of /v1/responses can be named; 0: none is kept.",
        ),
    ] = ResponseLimits.response_ttl_s,
    response_bytes: Annotated[
        int,
        _option(
            "BATON_RESPONSE_BYTES",
            "Bytes of responses that Redis keeps; beyond, the one used least lately goes.",
        ),
    ] = ResponseLimits.response_bytes,
    log_level: Annotated[str, typer.Option(envvar="BATON_LOG_LEVEL")] = "info",
    log_json: Annotated[bool, typer.Option(envvar="BATON_LOG_JSON")] = False,
) -> None:
    """Serve the OpenAI API, place requests at the workers, keep their record in Redis."""
    gc.freeze()
    gc.enable()
    try:
        configure_logging("coordinator", log_level, log_json)
        folder = checkpoint_folder(model)
        require_readable(folder, [CONFIG, TOKENIZER])
        api_keys = parse_api_keys(secret_setting(os.environ, API_KEYS), API_KEYS)
        settings = CoordinatorSettings(
            host=host,
            port=port,
            bind=bind,
            redis_url=redis_url,
            redis_password=secret_setting(os.environ, PASSWORD),
            model=folder,
            http=HttpSettings(
                served_model_name or model_name(folder.resolve()),
                max_held_body_bytes=max(_MIN_HELD_BODY_BYTES, memory_bytes() // 16),
                max_prompt_logprobs=max_prompt_logprobs,
                api_keys=api_keys,
                allowed_origins=_listed(allowed_origins),
                operator_keys=_listed(operator_keys),
                allowed_hosts=served_hosts(host, _listed(allowed_hosts), has_keys=bool(api_keys)),
                prefix_cache_isolation=prefix_cache_isolation,
                root_path=checked_root_path(root_path),
            ),
            hub=HubSettings(
                heartbeat,
                dead_after,
                max_open,
                max_open_tokens=max_open_tokens or tokens_that_fit(),
                request_timeout_s=request_timeout,
                silence_timeout_s=silence_timeout,
                queue_timeout_s=queue_timeout,
                targets=PoolTargets.of_ms(target_ttft_ms, target_tpot_ms, names=_TARGETS),
                pools_follow=_follow(pools),
            ),
            responses=ResponseLimits(response_ttl, response_bytes),
            drain_timeout_s=drain_timeout,
            hand_over=hand_over,
            channel_keys=channel_keys(secret_setting(os.environ, CHANNEL_SECRET)),
        )
        uvloop.run(serve(settings, inherited_listener(os.environ, os.getpid())))
    except (ValueError, OSError, BatonError) as error:
        log_fatal("coordinator", error)
        raise typer.Exit(exit_status(error)) from None


def _follow(pools: str) -> bool:
    """True if the pools follow the load. Raises ValueError."""
    if pools not in ("fixed", "manual", "auto"):
        raise ValueError(f"BATON_POOLS: {pools!r} is none of fixed, manual, auto")
    return pools == "auto"


def _listed(names: str) -> tuple[str, ...]:
    """The items of a list that is separated by commas."""
    return tuple(filter(None, map(str.strip, names.split(","))))


def exit_status(error: Exception) -> int:
    """The exit status of a start that ended with ``error``: whether a supervisor should try
    again."""
    waits = isinstance(error, RedisUnavailable) and not error.final
    return TRY_AGAIN if waits else CANNOT_START


if __name__ == "__main__":
    sys.exit(run_command("coordinator", main, sys.argv[1:], os.environ))
