"""A headless Chromium, driven over its own debugging pipe (the Chrome DevTools Protocol)."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

Serve = Callable[..., "asyncio.Future[str]"]
DEADLINE_S = 8.0
EXECUTABLES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
_KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, "")}


def executable() -> str | None:
    """Where a Chromium is installed."""
    return next((found for name in EXECUTABLES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one tab at a time. ``urls`` are those that the tab asked for, ``errors``
    what its console and its scripts complained about."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.errors: list[str] = []
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = self._context = ""

    async def start(self, program: str, folder: Path) -> None:
        commands, to_browser = os.pipe()
        from_browser, events = os.pipe()
        # The protocol wants the pipe as descriptors 3 and 4.
        self._process = await asyncio.create_subprocess_exec(
            "bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{events}',
            program, *_FLAGS, f"--user-data-dir={folder}", "about:blank",
            pass_fds=(commands, events), start_new_session=True,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(events)
        self._pipe = os.fdopen(to_browser, "wb", buffering=0)
        stream = asyncio.StreamReader(limit=64 * 1024 * 1024)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(from_browser, "rb")
        )
        self._reading = asyncio.create_task(self._read(stream))

    async def open_tab(self) -> None:
        """A tab that shares nothing with those before it: neither storage nor cache."""
        self.urls, self.errors = [], []
        context = await self.call("Target.createBrowserContext")
        self._context = context["browserContextId"]
        target = await self.call("Target.createTarget", url="about:blank", **context)
        attached = await self.call("Target.attachToTarget", flatten=True, **target)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.call(f"{domain}.enable")

    async def close_tab(self) -> None:
        self._session = ""
        await self.call("Target.disposeBrowserContext", browserContextId=self._context)

    async def close(self) -> None:
        with suppress(Exception):
            await self.call("Browser.close")
        async with asyncio.timeout(DEADLINE_S):
            await self._process.wait()
        self._reading.cancel()
        self._pipe.close()

    # ---- what a test does with it

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && document.querySelector('h1')")

    async def value(self, expression: str) -> Any:
        """What a JavaScript expression, or its promise, comes to."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, (expression, answer)
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until the document has changed so that ``condition`` holds."""
        try:
            await self.value(f"""new Promise((resolve) => {{
                const look = () => {{ if ({condition}) {{ watch.disconnect(); resolve(true); }} }};
                const watch = new MutationObserver(look);
                watch.observe(document, {{
                    subtree: true, childList: true, attributes: true, characterData: true }});
                document.addEventListener("readystatechange", look);
                look();
            }})""")
        except TimeoutError:
            page = await self.value("document.body.innerText")
            raise AssertionError(f"not within {DEADLINE_S} s: {condition}, but:\n{page}") from None

    async def write(self, selector: str, text: str) -> None:
        """Put ``text`` into a field, as if it was typed."""
        await self.value(
            f"{{const e = document.querySelector({selector!r}); e.focus(); e.select()}}"
        )
        await self.call("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        code, text = _KEYS[key]
        what = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **what)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    async def text(self, selector: str) -> str:
        found: str = await self.value(f"document.querySelector({selector!r}).innerText")
        return found

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol; its result."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._pipe.write(json.dumps(command).encode() + b"\0")
        async with asyncio.timeout(DEADLINE_S):
            return await answer

    async def _read(self, stream: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                message = json.loads((await stream.readuntil(b"\0"))[:-1])
                if answer := self._answers.pop(message.get("id", 0), None):
                    if answer.done():
                        continue
                    if "error" in message:
                        answer.set_exception(AssertionError(message["error"]))
                    else:
                        answer.set_result(message["result"])
                else:
                    self._note(message.get("method", ""), message.get("params", {}))
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(AssertionError("the browser has ended"))

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} ({params['entry'].get('url')})")
