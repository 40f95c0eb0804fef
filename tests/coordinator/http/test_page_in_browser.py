"""The page in a headless Chromium, over a scripted core. Skipped where none is installed."""

import asyncio
import re
from collections.abc import Callable

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.core.contract import LoadPoint, SpreadStatus, WorkerStatus
from coordinator.http.errors import ApiError
from coordinator.record.record import RequestRecord
from tests.coordinator.browser import Browser, Serve
from tests.coordinator.fake_core import FakeCore
from tests.coordinator.http.test_history import FakeHistory
from tests.coordinator.http.test_timeline import HANDED_OFF

pytestmark = pytest.mark.asyncio(loop_scope="module")

IDLE = "!document.querySelector('#send').disabled"
_IDLE = LoadPoint(0.0, 0.0, None, None, None, None, 0, 0, 0.0, None, 0.0)
FEW_HANDOFFS = LoadPoint(90.0, 9.0, 0.2, 2.0, None, None, 0, 1, 0.2, 0.005, 6e6)
AN_HOUR = (
    LoadPoint(30.0, 9.0, 0.1, 1.0, 0.01, 0.02, 7, 3, 0.0, None, 0.0),
    *[_IDLE] * 358,
    LoadPoint(90.0, 9.0, 0.2, 2.0, None, None, 0, 1, 4.0, 0.005, 6e6),
)
NOTE_WAITS = """
    const waits = [], wait = setTimeout;
    window.setTimeout = (then, ms) => { waits.push(ms); return wait(then, ms); };
"""


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
    spec = core.streams[0].spec
    assert spec.stop.max_tokens == 77
    assert spec.sampling.temperature == 0

    await browser.write("#message", "And then?")
    await browser.press("Enter")
    await browser.until("document.querySelectorAll('.assistant .facts:not(:empty)').length === 2")
    first, second = (len(stream.spec.prompt_ids) for stream in core.streams)
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
    bars = "['r1', 'r2'].map(id => document.querySelector(`[data-id=${id}] .bar`)"
    lengths = await browser.value(f"{bars}.getBoundingClientRect().width)")
    assert lengths[1] / lengths[0] == pytest.approx(0.5, abs=0.01), "one time scale: 1 s of 2 s"
    assert await browser.text("#scale") == "full width: 2.00 s"
    await browser.value("document.querySelector('[data-id=r1] details').open = true")
    cells = "map(row => [...row.cells].map(cell => cell.innerText))"
    rows = await browser.value(f"[...document.querySelectorAll('[data-id=r1] tr')].{cells}")
    assert [(row[0], row[1][-6:], *row[2:4]) for row in rows] == [
        ("queue", "40.000", "500 ms", ""), ("prefill", "40.500", "500 ms", "p"),
        ("handoff", "41.000", "125 ms", "d"), ("decode", "41.125", "875 ms", "d"),
        ("finished", "42.000", "2.00 s", ""),
    ]  # fmt: skip
    assert "copy 10 ms" in rows[2][4]
    facts = await browser.value("document.querySelector('[data-id=r1] .facts').textContent")
    assert "7 in, 5 cached (peer) · 3 out" in facts
    failed = await browser.value("document.querySelector('[data-id=r2]').textContent")
    assert "no_worker: none left" in failed
    assert "cached" not in failed
    await browser.write("#message", "Hi")
    await browser.press("Enter")
    await browser.until("document.querySelector('.assistant .error')")
    assert await browser.text(".assistant .error") == "the queue is full Try again in 3 s."


async def test_pools_are_blocks_with_a_row_a_worker_and_the_handoff_between_them(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    cold = WorkerStatus("decode-1", "decode", "cpu", 2, 1, 3, 8, 4, 4, "",
                      output_tokens_per_s=1234.4, drafts=2, tokens_per_step=2.345,
                      draft_acceptance=(0.881, 0.46), given_acceptance=0.7, kept_prefixes=12,
                      spread=SpreadStatus("spread", ("decode-1", "decode-3"), 0.751, 6.04, None, 2,
                                          {}, {"decode-3": 0.25}, None, {}, 0.0))  # fmt: skip
    slow = SpreadStatus("left out", (), None, None, 9.8, 0, {}, {}, None, {}, 60.0)
    hot = WorkerStatus("decode-2", "decode", "cuda", 0, 0, 8, 8, 4, 4, "two pages lost", True, 86.4,
                     breaker="half-open", spread=slow)  # fmt: skip
    prefill = WorkerStatus("prefill-1", "prefill", "cpu", 0, 0, 8, 8, 4, 4, "",
                         prompt_tokens_per_s=99.0, output_tokens_per_s=1.0, queried_tokens=4000,
                         reused_tokens=3480, kept_prefixes=1500, kept_prefixes_host=40)  # fmt: skip
    core = says(workers=(cold, hot, prefill), load=(AN_HOUR[0], AN_HOUR[-1]))
    await browser.open(await serve(core))
    await browser.until("document.querySelectorAll('#pools tbody tr').length === 4")
    cells = "map(r => [...r.cells].map(c => c.innerText))"
    rows = await browser.value(f"[...document.querySelectorAll('#pools tr')].{cells}")
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["worker", "running", "waiting", "pages", "state slots", "tok/s in", "hits"],
        ["prefill-1", "0", "0", "0/8", "0/4", "99", "87 % (1,500 + 40)"],
        ["worker", "running", "waiting", "pages", "state slots", "tok/s out", "tok/step", "drafts",
         "hits", "spread", "breaker", "GPU"],
        ["decode-1", "2", "1", "5/8", "0/4", "1,234", "2.35", "2 (88/46 %, given 70 %)", "– (12)",
         "75 % of 2 (6.0 / – ms)", "–", "–"],
        ["decode-2 draining", "0", "0", "0/8", "0/4", "0", "–", "–", "–", "left out", "half-open",
         "86 °C"],
        ["two pages lost"],
    ], "a column in which no worker of the pool tells anything is not there"  # fmt: skip
    order = "[...document.querySelector('#pools').children].map(e => e.id || e.className)"
    assert await browser.value(order) == ["pool prefill", "handoff", "pool decode"]
    await browser.until("document.querySelector('#handoff').innerText.includes('per second')")
    assert await browser.text("#handoff") == "handoff: 2.0 per second · p50 5.00 ms · 3.0 MB/s"
    assert await browser.text("#speed") == (
        "3 workers · prompts 99 tok/s · output 1,235 tok/s · prefix hits 87 %"
    )
    untold = "[...document.querySelectorAll('#pools th[scope=col]')].filter(e => !e.title)"
    assert await browser.value(f"{untold}.length") == 0, "every heading is explained"
    title = await browser.value("document.querySelector('#pools td span[title]').title")
    assert title == "decode-1, decode-3\ndecode-3: waited for 0.25 ms a step\n2 aborts"
    bar = "document.querySelector('.decode .meter')"
    filled = f"{bar}.firstChild.getBoundingClientRect().width / {bar}.getBoundingClientRect().width"
    assert await browser.value(filled) == pytest.approx(5 / 8, abs=0.02)


async def test_few_handoffs_are_counted(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    workers = (
        WorkerStatus("prefill-1", "prefill", "cpu", 0, 0, 8, 8, 4, 4, ""),
        WorkerStatus("decode-1", "decode", "cpu", 0, 0, 8, 8, 4, 4, ""),
    )
    await browser.open(await serve(says(workers=workers, load=(FEW_HANDOFFS, FEW_HANDOFFS))))
    await browser.until("document.querySelector('#handoff')?.innerText.includes('p50')")
    said = await browser.text("#handoff")
    assert said == "handoff: 4 in the last minute · p50 5.00 ms · 6.0 MB/s"


@pytest.mark.parametrize(
    ("earlier", "said"),
    [((), "no handoff yet"), ((FEW_HANDOFFS,), "handoff: none in the last minute")],
)
async def test_a_minute_without_handoffs(
    browser: Browser,
    serve: Serve,
    says: Callable[..., FakeCore],
    earlier: tuple[LoadPoint, ...],
    said: str,
) -> None:
    workers = (
        WorkerStatus("prefill-1", "prefill", "cpu", 0, 0, 8, 8, 4, 4, ""),
        WorkerStatus("decode-1", "decode", "cpu", 0, 0, 8, 8, 4, 4, ""),
    )
    await browser.open(await serve(says(workers=workers, load=(*earlier, *[_IDLE] * 6))))
    await browser.until("document.querySelector('#handoff')?.innerText.trim()")
    assert await browser.text("#handoff") == said


async def test_the_last_hour_is_drawn(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    await browser.open(await serve(says(load=AN_HOUR)))
    await browser.until("document.querySelectorAll('#charts figure').length === 4")
    figures = "[...document.querySelectorAll('#charts figure')]"
    said = await browser.value(f"{figures}.map(e => e.innerText.split('\\n').join(' '))")
    assert [" ".join(each.split()) for each in said] == [
        "Output 90 tok/s 60 min max 90 tok/s",
        "TTFT p50 200 ms p99 2.00 s 60 min max 2.00 s",
        "TPOT p50 – p99 – 60 min max 20 ms",
        "Queue 0 60 min max 7",
    ]
    drawn = await browser.value(
        f"{figures}.map(e => [...e.querySelectorAll('path')].map(p => p.getAttribute('d')))"
    )
    assert [len(paths) for paths in drawn] == [2, 4, 4, 2], "each line has a path for its dots"
    assert [paths[1].count("M") for paths in drawn] == [0, 2, 1, 0], "a value alone is a dot"
    assert drawn[0][0].count("L") == 359
    assert drawn[2][1].count("M") == 1, "without an answer there is no point"
    assert "NaN" not in str(drawn)
    label = "document.querySelector('#charts svg').getAttribute('aria-label')"
    assert await browser.value(label) == "Output, last 60 min: 90 tok/s; max 90 tok/s"


async def test_an_example_asks_at_a_click(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    core = says('{"answer": 48}')
    await browser.open(await serve(core))
    await browser.until("document.querySelectorAll('#examples button').length === 3")
    assert "word problems" in await browser.text("#abilities")
    await browser.value("document.querySelector('#examples button:last-child').click()")
    await browser.until("document.querySelector('.assistant .facts')?.textContent")
    assert await browser.value("document.querySelector('#welcome').hidden")
    assert "Nina has 13 shells." in await browser.text(".turn.user")
    assert core.streams[0].spec.sampling.constraint.grammar, "its answer has a form"
    await browser.value("document.querySelector('#clear').click()")
    assert not await browser.value("document.querySelector('#welcome').hidden")
    assert await browser.value("document.querySelectorAll('.turn').length") == 0


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (360, 740)])
async def test_the_composer_stays_on_the_screen(
    width: int, height: int, browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    await browser.call("Emulation.setDeviceMetricsOverride", **screen)
    long = "\n\n".join(f"{n} long lines" for n in range(30))
    await browser.open(await serve(says(long)))
    for number in (1, 2):
        await browser.write("#message", "Go")
        await browser.press("Enter")
        done = "document.querySelectorAll('.assistant .facts:not(:empty)').length"
        await browser.until(f"{done} === {number}")
    place = "(e => [e.top, e.bottom])(document.querySelector('#{}').getBoundingClientRect())"
    top, bottom = await browser.value(place.format("chat"))
    assert 0 <= top < bottom <= height
    end = "document.querySelector('.turn:last-child').getBoundingClientRect().bottom"
    assert await browser.value(end) <= top + 1, "and the answer's end is above it"


async def test_what_cannot_be_renewed_is_dimmed_and_says_of_when_it_is(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    gone = False

    def flaky(app: ASGIApp) -> ASGIApp:
        async def maybe(scope: Scope, receive: Receive, send: Send) -> None:
            if gone and not scope["path"].startswith("/page"):
                await ApiError(500, "It is broken.").response()(scope, receive, send)
            else:
                await app(scope, receive, send)

        return maybe

    worker = WorkerStatus("colocated-1", "colocated", "cpu", 2, 1, 8, 8, 4, 4, "")
    await browser.open(await serve(says(workers=(worker,)), wrap=flaky))
    await browser.until("document.querySelectorAll('#pools tbody tr').length === 1")
    opacity = "getComputedStyle(document.querySelector('#pools')).opacity"
    assert await browser.value(opacity) == "1"
    # The page looks again when its reader comes back; the test does not wait for the next look.
    look = "document.dispatchEvent(new Event('visibilitychange'))"
    gone = True
    await browser.value(look)
    await browser.until("document.querySelectorAll('.stale').length === 2")
    assert float(await browser.value(opacity)) < 0.5
    note = await browser.text("#pools-note")
    assert re.fullmatch(r"It is broken\. This is of \d\d:\d\d:\d\d\.", note)
    gone = False
    await browser.value(look)
    await browser.until("document.querySelectorAll('.stale').length === 0")
    assert await browser.text("#pools-note") == ""


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

    await browser.call("Page.addScriptToEvaluateOnNewDocument", source=NOTE_WAITS)
    await browser.open(await serve(says("Yes"), wrap=locked))
    await browser.until("!document.querySelector('#key-form').hidden")
    await browser.until("document.querySelector('#requests-note').innerText === 'Give a key.'")
    assert await browser.value("waits") == [], "without a key it does not look again and again"
    await browser.write("#key", "s3cret")
    await browser.press("Enter")
    await browser.until("document.querySelector('#health').className === 'good'")
    assert await browser.value("document.querySelector('#key-form').hidden")
    assert 2000 in await browser.value("waits")
    assert await browser.value("Object.values(sessionStorage).join()") == "s3cret"
    assert await browser.value("localStorage.length") == 0
    await browser.write("#message", "Open?")
    await browser.press("Enter")
    await browser.until("document.querySelector('.assistant .facts')?.textContent")
    assert await browser.text(".assistant .text") == "Yes"


async def test_it_fits_a_phone_and_a_keyboard(
    browser: Browser, serve: Serve, says: Callable[..., FakeCore]
) -> None:
    worker = WorkerStatus("prefill-1", "prefill", "cpu", 2, 1, 8, 8, 4, 4, "")
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    await browser.call("Emulation.setDeviceMetricsOverride", **phone)
    await browser.open(await serve(says(workers=(worker,))))
    await browser.until("document.querySelectorAll('#examples button').length === 3")
    await browser.until("document.querySelector('#pools td')")
    assert await browser.value("document.documentElement.scrollWidth") <= 360
    names = "[...document.querySelectorAll('#pools td')].map(e => getComputedStyle(e, '::before'))"
    assert (await browser.value(f"{names}.map(e => e.content)"))[:2] == ['"running"', '"waiting"']
    side = "document.querySelector('#pools .wide')"
    assert await browser.value(f"{side}.scrollWidth <= {side}.clientWidth"), "a card fits"
    reached = []
    for _ in range(9):
        await browser.press("Tab")
        reached.append(
            await browser.value("(e => e.id || e.className || e.tagName)(document.activeElement)")
        )
    assert reached == [
        "skip", "SUMMARY", "conversation", *["BUTTON"] * 3, "message", "send", "clear",
    ]  # fmt: skip
    unnamed = "[...document.querySelectorAll('input, textarea')].filter(e => !e.labels.length)"
    assert await browser.value(f"{unnamed}.map(e => e.id)") == []
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await browser.call("Emulation.setEmulatedMedia", features=[feature])
        ground = await browser.value("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(246, 247, 248)", "dark": "rgb(20, 23, 26)"}[scheme]
