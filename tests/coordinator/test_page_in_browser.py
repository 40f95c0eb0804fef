"""The page in a headless Chromium, over a scripted core. Skipped where none is installed."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.api import create_app
from coordinator.contract import PoolStatus
from coordinator.edge_settings import EdgeSettings
from coordinator.errors import ApiError
from coordinator.record import RequestRecord
from coordinator.tokenizer import Tokenizer
from tests.coordinator.browser import Browser, executable
from tests.coordinator.fake_core import FakeCore
from tests.coordinator.test_history import FakeHistory
from tests.coordinator.test_timeline import HANDED_OFF

Serve = Callable[..., "asyncio.Future[str]"]
IDLE = "!document.querySelector('#send').disabled"


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    program = executable()
    if program is None:
        pytest.skip("no browser is installed; on Debian: apt-get install chromium")
    browser = Browser()
    await browser.start(program, tmp_path / "profile")
    yield browser
    await browser.close()


@pytest.fixture
async def serve(tokenizer: Tokenizer) -> AsyncIterator[Serve]:
    """Serve an app over a core on a port of its own; the URL."""
    running: list[tuple[uvicorn.Server, asyncio.Task[None]]] = []

    async def begin(
        core: FakeCore,
        history: FakeHistory | None = None,
        wrap: Callable[..., ASGIApp] | None = None,
    ) -> str:
        core.max_seq_len = 4096  # the page asks for 512 tokens if nobody says otherwise
        app: ASGIApp = create_app(core, tokenizer, EdgeSettings("tiny"), history=history)
        app = wrap(app) if wrap else app
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        )
        task = asyncio.create_task(server.serve(sockets=[listener]))
        running.append((server, task))
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield begin
    for server, task in running:
        server.should_exit = True
        await task


async def test_a_question_is_answered_as_it_comes(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    gate = asyncio.Semaphore(3)
    core = says("Hello <b>wörld</b>", gate=gate)
    url = await serve(core)
    await browser.open(url)
    await browser.until("document.querySelector('#health').className === 'good'")
    await browser.value("document.querySelector('#settings').open = true")
    await browser.write("#system", "Be brief.")
    await browser.write("#temperature", "0")
    await browser.write("#max-tokens", "77")
    await browser.write("#message", "Who?")
    await browser.press("Enter")
    await browser.until("document.querySelector('.assistant .text')?.textContent === 'Hell'")
    for _ in range(100):
        gate.release()
    await browser.until(IDLE)
    assert await browser.text(".assistant .text") == "Hello <b>wörld</b>", "text is never markup"
    assert "tokens · first token after" in await browser.text(".assistant .facts")
    generation = core.streams[0].generation
    assert generation.stop.max_tokens == 77
    assert generation.sampling.temperature == 0

    await browser.write("#message", "And then?")
    await browser.press("Enter")
    await browser.until("document.querySelectorAll('.assistant .facts:not(:empty)').length === 2")
    first, second = (len(stream.generation.prompt_ids) for stream in core.streams)
    assert second > first + 20, "the conversation goes along"
    assert browser.errors == []
    assert all(found.startswith((url, "data:", "about:")) for found in browser.urls), browser.urls


async def test_stop_cancels_and_the_part_stays(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    core = says("A long answer that never ends", gate=asyncio.Semaphore(4))
    await browser.open(await serve(core))
    await browser.write("#message", "Go on")
    await browser.press("Enter")
    await browser.until("document.querySelector('.assistant .text')?.textContent === 'A lo'")
    await browser.press("Escape")
    await browser.until(IDLE)
    assert await browser.text(".assistant .facts") == "Stopped."
    async with asyncio.timeout(5.0):
        await core.streams[0].ended.wait()
    assert core.outcomes == ["cancelled"]
    assert await browser.text(".assistant .text") == "A lo"


async def test_a_thought_is_shown_apart(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    await browser.open(await serve(says("two and two\n</think>\n\nfour")))
    await browser.value("document.querySelector('#thinking').click()")
    await browser.write("#message", "2 + 2?")
    await browser.press("Enter")
    await browser.until("document.querySelector('.assistant .facts')?.textContent")
    assert await browser.text(".assistant .text") == "four"
    thought = await browser.value("document.querySelector('.thought').textContent")
    assert thought == "two and two"


async def test_requests_are_drawn_and_refusals_told(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    history = FakeHistory(
        RequestRecord(request_id="r1", coordinator="c", state="finished", ended_at=102.0,
                      **HANDED_OFF),
        RequestRecord(request_id="r2", coordinator="c", state="failed", failure_code="no_worker",
                      failure_message="none left", received_at=1.0, queued_at=1.0, ended_at=2.0),
    )  # fmt: skip
    await browser.open(await serve(says(accept=0), history))
    await browser.until("document.querySelectorAll('#requests li').length === 2")
    drawn = "document.querySelector('[data-id=r1] .bar')"
    assert await browser.value(f"{drawn}.getAttribute('aria-label')") == (
        "queue 500 ms, prefill 500 ms, handoff 125 ms, decode 875 ms"
    )
    widths = await browser.value(f"[...{drawn}.children].map(e => e.getBoundingClientRect().width)")
    shares = [width / sum(widths) for width in widths]
    assert shares == pytest.approx([0.25, 0.25, 0.0625, 0.4375], abs=0.01)
    assert "copy 10 ms" in await browser.value(
        "document.querySelector('[data-id=r1] table').textContent"
    )
    failed = await browser.value("document.querySelector('[data-id=r2]').textContent")
    assert "no_worker: none left" in failed
    await browser.write("#message", "Hi")
    await browser.press("Enter")
    await browser.until("document.querySelector('.assistant .error')")
    assert await browser.text(".assistant .error") == "the queue is full Try again in 3 s."


async def test_a_workers_heat_is_shown_where_it_is_known_and_who_drains(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    cold = PoolStatus("decode-1", "decode", "cpu", 2, 1, 8, 8, 4, 4, "")
    hot = PoolStatus("decode-2", "decode", "cuda", 0, 0, 8, 8, 4, 4, "", True, 86.4)
    await browser.open(await serve(says(workers=(cold, hot))))
    await browser.until("document.querySelectorAll('.worker').length === 2")
    hints = "[...document.querySelectorAll('.worker .hint')]"
    facts = await browser.value(f"{hints}.map(each => each.innerText)")
    assert facts == [
        "cpu · 2 running · 1 waiting",
        "cuda · 0 running · 0 waiting · 86 °C · draining",
    ]


async def test_a_key_is_asked_for_and_kept_in_the_tab(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    def locked(app: ASGIApp) -> ASGIApp:
        async def door(scope: Scope, receive: Receive, send: Send) -> None:
            known = (b"authorization", b"Bearer s3cret") in scope["headers"]
            if scope["path"].startswith(("/v1/", "/status")) and not known:
                await ApiError(401, "Give a key.").response()(scope, receive, send)
            else:
                await app(scope, receive, send)

        return door

    await browser.open(await serve(says("Yes"), wrap=locked))
    await browser.until("!document.querySelector('#key-form').hidden")
    await browser.until("document.querySelector('#requests-note').innerText === 'Give a key.'")
    await browser.write("#key", "s3cret")
    await browser.press("Enter")
    await browser.until("document.querySelector('#health').className === 'good'")
    assert await browser.value("document.querySelector('#key-form').hidden")
    assert await browser.value("Object.values(sessionStorage).join()") == "s3cret"
    assert await browser.value("localStorage.length") == 0
    await browser.write("#message", "Open?")
    await browser.press("Enter")
    await browser.until("document.querySelector('.assistant .facts')?.textContent")
    assert await browser.text(".assistant .text") == "Yes"


async def test_it_fits_a_phone_and_a_keyboard(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    await browser.call("Emulation.setDeviceMetricsOverride", **phone)
    await browser.open(await serve(says()))
    assert await browser.value("document.documentElement.scrollWidth") <= 360
    reached = []
    for _ in range(6):
        await browser.press("Tab")
        reached.append(
            await browser.value("(e => e.id || e.className || e.tagName)(document.activeElement)")
        )
    assert reached == ["skip", "SUMMARY", "conversation", "message", "send", "clear"]
    unnamed = "[...document.querySelectorAll('input, textarea')].filter(e => !e.labels.length)"
    assert await browser.value(f"{unnamed}.map(e => e.id)") == []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await browser.call("Emulation.setEmulatedMedia", features=[feature])
        ground = await browser.value("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(246, 247, 248)", "dark": "rgb(20, 23, 26)"}[scheme]
