"""Markdown of answers, as the page's elements in a headless Chromium."""

import json
from collections.abc import Callable

import pytest
import pytest_asyncio

from tests.coordinator.browser import Browser, Serve
from tests.coordinator.fake_core import FakeCore

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHOWN = """(async () => {
    const { showMarkdown } = await import("/page/markdown.js");
    window.box ??= document.createElement("div");
    for (const source of %s) showMarkdown(window.box, source);
    return window.box.innerHTML;
})()"""
ANSWER = """# Merge

Use **two** indices, `i` and *j*:

```python
def merge(a, b):
    return a <b> b  # ** as it is **
```

1. first
2. second with `code`
   - inner
   - last

> said | so

| name | cost |
|------|-----:|
| a\\|b | **3** |

See [the docs](https://e.test/x_y_z), snake_case_name and 2 * 3 * 4.
"""
HTML = (
    "<h4>Merge</h4>"
    "<p>Use <strong>two</strong> indices, <code>i</code> and <em>j</em>:</p>"
    '<div class="code"><div class="code-bar"><span>python</span>{copy}</div>'
    '<pre tabindex="0" aria-label="Code: python"><code>def merge(a, b):\n'
    "    return a &lt;b&gt; b  # ** as it is **</code></pre></div>"
    '<ol start="1"><li>first</li><li>second with <code>code</code>'
    "<ul><li>inner</li><li>last</li></ul></li></ol>"
    "<blockquote><p>said | so</p></blockquote>"
    '<div class="wide"><table><thead><tr><th>name</th><th>cost</th></tr></thead>'
    "<tbody><tr><td>a|b</td><td><strong>3</strong></td></tr></tbody></table></div>"
    '<p>See <a href="https://e.test/x_y_z" target="_blank" rel="noopener noreferrer" '
    'title="https://e.test/x_y_z">the docs</a>, snake_case_name and 2 * 3 * 4.</p>'
)
HOSTILE = (
    "<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "[x](javascript:alert(1))",
    "![x](data:text/html,<script>alert(1)</script>)", "[x](https://a\"onclick=\"alert(1))",
    "<a href='https://e.test' onclick=alert(1)>x</a>", "```<img src=x onerror=alert(1)>\nx\n```",
    "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <b onclick=alert(1)> | d |",
    "[<img src=x onerror=alert(1)>](https://e.test)", "&lt;img src=x onerror=alert(1)&gt;",
)  # fmt: skip


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, serve: Serve, says: Callable[..., FakeCore]) -> Browser:
    await browser.open(await serve(says()))
    return browser


async def shown(page: Browser, *sources: str) -> str:
    html: str = await page.value(SHOWN % json.dumps(sources))
    return html


async def test_each_kind_of_block_becomes_its_element(page: Browser) -> None:
    html = await shown(page, ANSWER)
    copy = '<button type="button">Copy</button>'
    assert html in (HTML.format(copy=copy), HTML.format(copy="")), html


async def test_an_answer_that_grows_ends_as_one_that_came_at_once(page: Browser) -> None:
    whole = await shown(page, ANSWER)
    await page.value("window.firstBlock = window.box.firstChild")
    steps = [ANSWER[:n] for n in range(len(ANSWER.split("\n")[0]) + 1, len(ANSWER), 7)]
    assert await shown(page, *steps, ANSWER) == whole
    assert await page.value("window.firstBlock === window.box.firstChild"), "it was kept"


async def test_nothing_of_a_text_becomes_markup(page: Browser) -> None:
    for text in HOSTILE:
        await shown(page, text)
        made = "[...window.box.querySelectorAll('*')]"
        tags = set(await page.value(f"{made}.map(e => e.localName)"))
        assert not tags & {"img", "script", "b", "iframe", "style"}, (text, tags)
        names = f"{made}.flatMap(e => e.getAttributeNames())"
        assert not [n for n in await page.value(names) if n.startswith("on")], text
        targets = await page.value(
            "[...window.box.querySelectorAll('a')].map(e => new URL(e.href).protocol)"
        )
        assert set(targets) <= {"https:"}, (text, targets)


async def test_deep_and_long_texts_take_no_time(page: Browser) -> None:
    for text in ("> " * 5000 + "x", "- " * 5000 + "x", "*" * 5000, "`" * 5000, "[" * 5000,
                 "**a" * 3000, "_a " * 3000, "|" * 5000 + "\n" + "|-" * 2000, " " * 9000 + "x",
                 "a | b\n-|-\n" * 2000, "#" * 9000, "- a\n" * 3000):  # fmt: skip
        started = "(t => (window.took = performance.now() - t))"
        await page.value("window.began = performance.now()")
        await shown(page, text)
        took_ms = await page.value(f"{started}(window.began)")
        assert took_ms < 2000, (text[:20], took_ms)
