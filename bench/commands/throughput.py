"""``baton bench throughput``: tokens a second and latencies at each level of concurrency."""

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.commands import options as o
from bench.commands.conduct import Conduct, Session, nobodys_gpus

Api = Literal["completions", "chat"]
PromptAs = Literal["text", "ids"]
_LEVELS = "1,2,4,8,16,32,64"


def throughput(
    url: o.Url = "http://127.0.0.1:8000",
    model: o.Model = None,
    api_key: o.ApiKey = None,
    insecure: o.Insecure = False,
    tokenizer: o.TokenizerFolder = None,
    vocab_size: o.VocabSize = None,
    levels: Annotated[str, typer.Option(help="Requests at once, level by level.")] = _LEVELS,
    requests: Annotated[int, typer.Option(help="Requests a level.")] = 64,
    rounds: Annotated[
        int, typer.Option(help="A level is filled at most so many times; 0: no limit.")
    ] = 0,
    input_len: Annotated[int, typer.Option(help="Tokens in, exactly.")] = 1024,
    output_len: Annotated[int, typer.Option(help="Tokens out.")] = 1024,
    warm_ups: Annotated[int, typer.Option(help="Requests before each level, not counted.")] = 2,
    spot_checks: Annotated[
        int, typer.Option(help="Sums among a level's requests; none where over one of eight.")
    ] = 2,
    seed: Annotated[int | None, typer.Option(help="Of the prompts; fresh if not given.")] = None,
    stream: Annotated[bool, typer.Option(help="Stream the answers.")] = True,
    api: Annotated[Api, typer.Option(help="The endpoint.")] = "completions",
    prompt_as: Annotated[PromptAs, typer.Option(help="ids: completions only.")] = "text",
    temperature: Annotated[float, typer.Option(help="Of the random prompts; sums have 0.")] = 1.0,
    ignore_eos: Annotated[bool, typer.Option(help="Go on to exactly --output-len.")] = True,
    token_ids: Annotated[bool, typer.Option(help="Ask for token ids (an extension).")] = True,
    exact: o.Exact = None,
    count_tolerance: Annotated[
        float, typer.Option(help="Share by which a text may hold less than is claimed.")
    ] = 0.1,
    extra_body: o.ExtraBody = "{}",
    connect_s: o.ConnectS = 10.0,
    first_byte_s: o.FirstByteS = 120.0,
    stall_s: o.StallS = 60.0,
    request_s: o.RequestS = 900.0,
    give_up_after: o.GiveUpAfter = 16,
    time_limit_s: o.TimeLimitS = 4 * 3600.0,
    out: o.Out = Path("throughput.json"),
    html: o.Html = None,
) -> None:
    """Random prompts of exact length in a closed loop, strictly counted, at each level.

    Exit status: 0, 1 when a request failed, 2 when nothing could be measured, 130 interrupted.
    """
    from bench.server_info import find_tokens
    from bench.throughput import Throughput, measure
    from bench.throughput_settings import ThroughputSettings
    from telemetry.nvml import local_gpus

    try:
        settings = ThroughputSettings(
            seed=secrets.randbelow(2**32) if seed is None else seed,
            levels=_levels(levels),
            requests=requests,
            rounds=rounds,
            input_len=input_len,
            output_len=output_len,
            warm_ups=warm_ups,
            spot_checks=spot_checks,
            stream=stream,
            api=api,
            prompt_as=prompt_as,
            temperature=temperature,
            ignore_eos=ignore_eos,
            return_token_ids=token_ids,
            exact=exact,
            count_tolerance=count_tolerance,
            extra_body=o.json_object("extra_body", extra_body),
        )
        where = o.resolve_endpoint(url, api_key, insecure)
        deadlines, patience = o.resolve_limits(
            connect_s, first_byte_s, stall_s, request_s, give_up_after, time_limit_s
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

    async def work(session: Session) -> Throughput:
        settings.check_fits(session.server)
        tokens = await find_tokens(session.aside, session.server, tokenizer, vocab_size)
        session.progress.say(f"seed {settings.seed}, {tokens.source}")
        return await measure(
            session.client, session.server, tokens, settings, session.control, session.progress
        )

    Conduct("throughput", where, model, deadlines, patience, asdict(settings), out, html,
        gpus=local_gpus if where.is_local else nobodys_gpus,
    )(work)  # fmt: skip


def _levels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"levels: {text!r} are not numbers with commas between") from None
