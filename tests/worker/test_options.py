"""The command lines of the three roles, and what they make of a bad setting."""

import math
from inspect import signature
from typing import Any

import pytest
import torch
import typer
from typer.models import OptionInfo
from typer.testing import CliRunner

from decode.spread_table import SHIPPED
from engine.config import PROMPT_TOKENS
from prefill.limits import PrefillLimits
from worker import main
from worker.main import command
from worker.options import Options
from worker.role_options import ColocatedOptions, DecodeOptions, PrefillOptions
from worker.settings import HandoffSettings, PrefixCacheSettings, WorkerSettings

GIVEN: dict[str, Any] = {"coordinator": "ipc://somewhere", "device": "cpu"}
OF_SOME_ROLES = {
    "any_role": {"prefill", "decode"},
}
ROLES = [PrefillOptions, DecodeOptions, ColocatedOptions]


@pytest.mark.parametrize("options", ROLES)
def test_a_role_has_the_options_of_all_and_its_own_each_with_a_variable(
    options: type[Options],
) -> None:
    found = signature(command(options)).parameters
    own = {name for name, roles in OF_SOME_ROLES.items() if options.role in roles}
    assert set(found) == set(signature(Options).parameters) | own
    for name, parameter in found.items():
        (option,) = parameter.annotation.__metadata__
        assert isinstance(option, OptionInfo)
        assert option.envvar == f"BATON_{name.upper()}"


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        (PrefillOptions, {"offer_ttl": 0.0}, "offer_ttl: 0.0 is not positive"),
        (PrefillOptions, {"offer_ttl": math.nan}, "offer_ttl: nan is not positive"),
        (PrefillOptions, {"drain_timeout": math.nan}, "drain_timeout_s: nan is not 0 or more"),
        (PrefillOptions, {"max_batch_tokens": 63}, "max_batch_tokens: 63 < 64"),
        (ColocatedOptions, {"pull_timeout": -1.0}, "pull_timeout: -1.0 is not positive"),
        (DecodeOptions, {"max_tokens_beside_decode": 63}, "max_tokens_beside_decode: 63 < 64"),
        (ColocatedOptions, {"max_tokens_beside_decode": 63}, "max_tokens_beside_decode: 63 < 64"),
        (DecodeOptions, {"speculate": "5"}, "speculate: '5' is not auto, off or a number up to 4"),
        (DecodeOptions, {"host_cache_gb": -1.0}, "host_cache: -1.0 GB is negative or not finite"),
        (PrefillOptions, {"host_cache_gb": math.inf}, "host_cache: inf GB is negative or not .*"),
        (DecodeOptions, {"spread": "0"}, "spread: '0' is not auto, off or a number of token rows"),
        (PrefillOptions, {"speculate": ""}, "speculate: '' is not auto, off or a number up to 4"),
        (DecodeOptions, {"draft_acceptance": 0.8}, "draft_acceptance: is for benchmarks .*"),
        (
            ColocatedOptions,
            {"draft_acceptance": -1.0, "load_format": "dummy"},
            "draft_acceptance: -1 is not from 0 to 1",
        ),
    ],
)
def test_a_bad_setting_is_named(
    options: type[Options], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        options(**GIVEN, **given).settings()


def test_a_decode_worker_computes_prompts_in_batches_as_beside_running_sequences() -> None:
    limits = DecodeOptions(**GIVEN, max_tokens_beside_decode=128).settings().limits
    for num_running, num_waiting in ((0, 1), (8, 1), (1, 9)):
        found = limits.max_tokens(num_running=num_running, num_waiting=num_waiting)
        assert found == 128


@pytest.mark.parametrize(("any_role", "most"), [(True, 256), (False, 128)])
def test_a_decode_workers_prompts_have_the_limits_of_all_workers(any_role: bool, most: int) -> None:
    given = {"max_batch_tokens": 256, "max_batch_rows": 1, "max_tokens_beside_decode": 128}
    found = DecodeOptions(**GIVEN, any_role=any_role, **given).settings()
    assert found.limits.prompts == PrefillLimits(most, 1)
    assert (found.engine.max_prompt_tokens, found.engine.prompts_apart) == (256, True)


def test_no_batch_of_a_decode_worker_is_larger_than_memory_is_kept_free_for() -> None:
    found = DecodeOptions(**GIVEN, max_batch_tokens=64).settings()
    assert found.limits.max_tokens(num_running=0, num_waiting=1) == 64
    assert (found.engine.max_prompt_tokens, found.engine.prompts_apart) == (64, False)
    more = DecodeOptions(**GIVEN, max_batch_tokens=2 * PROMPT_TOKENS).settings()
    assert more.engine.max_prompt_tokens == PROMPT_TOKENS, "it computes few prompts"


def test_steps_are_timed_unless_that_is_switched_off_or_a_table_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[WorkerSettings] = []
    monkeypatch.setattr(main, "run_service", lambda *given: given[-1]())
    monkeypatch.setattr(main, "serve", found.append)
    app = typer.Typer()
    app.command()(main.command(DecodeOptions))
    base = {"BATON_COORDINATOR": "ipc://somewhere", "BATON_DEVICE": "cpu"}
    for typed, given in (
        ([], {}), (["--no-spread-trials"], {}), ([], {"BATON_SPREAD_TRIALS": "off"}),
        ([], {"BATON_SPREAD_TABLE": str(SHIPPED)}),
    ):  # fmt: skip
        result = CliRunner().invoke(app, typed, env=base | given, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    assert [each.spread_trials for each in found] == [True, False, False, True]
    assert [each.spread_table is None for each in found] == [True, True, True, False]


@pytest.mark.parametrize(("num_gpus", "sizes"), [(1, (2,)), (2, (2,)), (3, (2, 4)), (8, (2, 4, 8))])
def test_graphs_are_for_groups_of_as_many_gpus_as_are_seen(
    num_gpus: int, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    engine = DecodeOptions(**GIVEN | {"device": "cuda"}).settings().engine
    assert engine.group_sizes == sizes


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, PrefixCacheSettings(enabled=True, host_bytes=0)),
        (["--no-prefix-cache"], {}, PrefixCacheSettings(enabled=False)),
        ([], {"BATON_PREFIX_CACHE": "off"}, PrefixCacheSettings(enabled=False)),
        (["--prefix-cache"], {"BATON_PREFIX_CACHE": "off"}, PrefixCacheSettings(enabled=True)),
        (["--host-cache", "1.5"], {}, PrefixCacheSettings(host_bytes=1_500_000_000)),
        ([], {"BATON_HOST_CACHE_GB": "64"}, PrefixCacheSettings(host_bytes=64_000_000_000)),
    ],
)
def test_the_prefix_cache_is_set_on_the_command_line_or_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    expected: PrefixCacheSettings,
) -> None:
    found: list[WorkerSettings] = []
    monkeypatch.setattr(main, "run_service", lambda *given: given[-1]())
    monkeypatch.setattr(main, "serve", found.append)
    app = typer.Typer()
    app.command()(main.command(PrefillOptions))
    given = {"BATON_COORDINATOR": "ipc://somewhere", "BATON_DEVICE": "cpu", **environment}
    result = CliRunner().invoke(app, arguments, env=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert [each.prefix_cache for each in found] == [expected]


@pytest.mark.parametrize("options", ROLES)
def test_what_handoffs_take_holds_for_each_role_since_all_may_move_sequences(
    options: type[Options],
) -> None:
    given = {"offer_ttl": 5.0, "pull_timeout": 2.0, "verify_handoff": True}
    assert options(**GIVEN, **given).settings().handoff == HandoffSettings(5.0, 2.0, verify=True)
