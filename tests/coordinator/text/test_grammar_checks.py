"""The process that checks forms, and what is remembered of it."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator.text import grammar_checks
from coordinator.text.forms import Form, Verdict
from coordinator.text.grammar_checks import TOO_MUCH, ChecksBusy, GrammarChecks

DEADLINE_S = 10.0
DIGITS = Form("regex", "[0-9]+")
ENDLESS = Form("json", {"type": "integer", "multipleOf": 999_983})


@pytest.fixture
def checks(checkpoint: Path) -> Iterator[GrammarChecks]:
    checks = GrammarChecks(checkpoint, 500, [2])
    yield checks
    checks.close()


def pid(checks: GrammarChecks) -> int:
    return checks._running()._process.pid


async def test_a_form_gets_its_grammar_or_the_reason_why_not(checks: GrammarChecks) -> None:
    assert "[0-9]+" in (await checks.check(DIGITS)).grammar
    assert "not valid GBNF" in (await checks.check(Form("grammar", 'x ::= "'))).problem
    of_tools = await checks.check(
        Form(functions=[{"name": "f", "parameters": {"required": ["x"]}}])
    )
    assert of_tools.of_tools
    assert "'x'" in of_tools.problem


async def test_a_form_that_takes_too_much_is_ended_alone(checks: GrammarChecks) -> None:
    before = pid(checks)
    found = await asyncio.gather(checks.check(ENDLESS), checks.check(DIGITS))
    assert found[0].problem == TOO_MUCH
    assert found[1].grammar
    assert pid(checks) == before


async def test_equal_forms_are_checked_once(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    ask = checks._ask

    def counted(form: bytes) -> object:
        asked.append(form)
        return ask(form)

    monkeypatch.setattr(checks, "_ask", counted)
    found = await asyncio.gather(*(checks.check(DIGITS) for _ in range(20)))
    assert len({verdict.grammar for verdict in found}) == 1
    await checks.check(DIGITS)
    assert len(asked) == 1


async def test_what_is_remembered_is_bounded(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_checks, "_MAX_KEPT_BYTES", 1_000)
    for number in range(20):
        await checks.check(Form("regex", f"{number}" * 100))
    assert 0 < len(checks._known) < 10
    assert checks._kept_bytes <= 1_000


async def test_a_process_that_was_killed_is_started_again(checks: GrammarChecks) -> None:
    await checks.check(DIGITS)
    os.kill(pid(checks), signal.SIGKILL)
    assert (await checks.check(Form("regex", "[a-z]"))).grammar


async def test_a_process_that_hangs_is_replaced(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    await checks.check(DIGITS)
    os.kill(before := pid(checks), signal.SIGSTOP)
    monkeypatch.setattr(grammar_checks, "_DEADLINE_S", 0.2)
    with pytest.raises(ChecksBusy, match="does not answer"):
        await asyncio.to_thread(checks._ask, b"{}")
    monkeypatch.undo()
    assert (await checks.check(Form("regex", "[a-z]"))).grammar
    assert pid(checks) != before


async def test_a_process_that_loads_is_not_replaced(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.kill(before := pid(checks), signal.SIGSTOP)
    monkeypatch.setattr(grammar_checks, "_DEADLINE_S", 0.2)
    with pytest.raises(ChecksBusy, match="does not answer"):
        await asyncio.to_thread(checks._ask, b"{}")
    monkeypatch.undo()
    os.kill(before, signal.SIGCONT)
    assert (await checks.check(DIGITS)).grammar
    assert pid(checks) == before


async def test_owners_take_turns(checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[bytes] = []
    gate = threading.Event()

    def ask(form: bytes) -> Verdict:
        gate.wait(DEADLINE_S)
        order.append(form)
        return Verdict("g")

    monkeypatch.setattr(checks, "_ask", ask)
    monkeypatch.setattr(checks, "_threads", ThreadPoolExecutor(1))
    asked = [checks._asked(b"%d" % number, "many") for number in range(20)]
    asked.append(checks._asked(b"one", "few"))
    gate.set()
    for future in asked:
        future.result(DEADLINE_S)
    assert order.index(b"one") <= 2


async def test_too_many_that_wait_are_refused(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(checks, "_ask", lambda _: gate.wait(DEADLINE_S) and Verdict("g"))
    monkeypatch.setattr(checks, "_threads", ThreadPoolExecutor(1))
    monkeypatch.setattr(grammar_checks, "_MAX_WAITING_OF_ONE", 2)
    monkeypatch.setattr(grammar_checks, "_MAX_WAITING", 4)

    def ask(owners: Iterable[str]) -> None:
        for number, owner in enumerate(owners):
            checks._asked(b"%s %d" % (owner.encode(), number), owner)

    with pytest.raises(ChecksBusy, match="2 of yours"):
        ask("aaaa")  # one of them runs perhaps
    with pytest.raises(ChecksBusy, match="4 grammars wait"):
        ask("bcdef")
    gate.set()


async def test_what_waits_at_the_end_is_cancelled(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(checks, "_ask", lambda _: gate.wait(DEADLINE_S) and Verdict("g"))
    monkeypatch.setattr(checks, "_threads", ThreadPoolExecutor(1))
    asked = [checks._asked(b"%d" % number, "a") for number in range(3)]
    checks.close()
    assert asked[2].cancelled()
    gate.set()


def test_no_process_is_started_after_the_end(checks: GrammarChecks) -> None:
    process = checks._running()._process
    checks.close()
    assert process.poll() is not None
    with pytest.raises(ChecksBusy):
        checks._ask(b"")
    assert checks._server is not None
    assert checks._server._process is process


async def test_a_form_that_waits_too_long_is_refused(
    checks: GrammarChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_checks, "_DEADLINE_S", 0.0)
    with pytest.raises(ChecksBusy, match="not checked within"):
        await checks.check(DIGITS)
