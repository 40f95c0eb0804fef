"""A tokenizer, a Redis, apps over scripted cores, and a browser for their page."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn
from hypothesis import settings as hypothesis_settings
from redis import Redis
from starlette.types import ASGIApp

from coordinator.core.contract import History
from coordinator.http.bodies.parsers import BodyParsers
from coordinator.http.http_settings import HttpSettings
from coordinator.record.store import Store
from coordinator.text.tokenizer import Tokenizer
from tests.coordinator.answers import CHAT, USER
from tests.coordinator.apps import make_app
from tests.coordinator.browser import Browser, Serve, executable
from tests.coordinator.checkpoint_folder import write_checkpoint
from tests.coordinator.dialect_templates import TEMPLATES, dialect_folder
from tests.coordinator.fake_core import ClientOf, FakeCore, Says
from tests.coordinator.site import Site
from tests.coordinator.stores import FAST, MakeStore
from tests.local_redis import LocalRedis

# A busy machine is no reason to fail.
hypothesis_settings.register_profile("unhurried", deadline=None)
hypothesis_settings.load_profile("unhurried")


class QuickTicks:
    """asyncio as uvicorn's server sees it: the ticks for which it sleeps take a twentieth."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(delay_s: float) -> None:
        await asyncio.sleep(delay_s / 20)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tokenizer]]:
    """The tokenizer of each template of dialect_templates.py."""
    folder = tmp_path_factory.mktemp("dialects")
    found = {name: Tokenizer.load(dialect_folder(folder, name)) for name in TEMPLATES}
    yield found
    for tokenizer in found.values():
        tokenizer.close()


@pytest.fixture(autouse=True, scope="session")
def _quick_ticks() -> Iterator[None]:
    """A server ends with its second tick, of 0.1 s each: so would hundreds of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.server.asyncio", QuickTicks())
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Iterator[Tokenizer]:
    tokenizer = Tokenizer.load(checkpoint)
    yield tokenizer
    tokenizer.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalRedis]:
    """A Redis of the test's own."""
    local = LocalRedis(tmp_path / "run")
    local.start()
    yield local
    local.stop()


@pytest.fixture
def redis(server: LocalRedis) -> Iterator[Redis]:
    with Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def says(tokenizer: Tokenizer) -> Callable[..., FakeCore]:
    """A core that answers every prompt with a text and the end-of-turn token."""

    def make(text: str = "Hello, wörld! 🙂", **settings: Any) -> FakeCore:
        ids = [*tokenizer.encode(text), tokenizer.info.eos_ids[0]]
        return FakeCore(lambda _: ids, **settings)

    return make


@pytest.fixture(scope="session")
def parsers(checkpoint: Path) -> Iterator[BodyParsers]:
    parsers = BodyParsers(checkpoint)
    yield parsers
    parsers.close()


@pytest.fixture
async def client_of(
    tokenizer: Tokenizer, parsers: BodyParsers
) -> AsyncIterator[Callable[..., httpx.AsyncClient]]:
    """An HTTP client of an app over a core, without a socket."""
    async with AsyncExitStack() as stack:

        def make(core: FakeCore, **settings: Any) -> httpx.AsyncClient:
            app = make_app(core, tokenizer, HttpSettings("tiny", **settings), parsers=parsers)
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(app, raise_app_exceptions=True),
                base_url="http://t",
                headers={"content-type": "application/json"},
            )
            stack.push_async_callback(client.aclose)
            return client

        yield make


@pytest.fixture
async def make_store(server: LocalRedis) -> AsyncIterator[MakeStore]:
    made: list[Store] = []

    async def make(instance: str = "c1", protocol: str = "baton/1", **options: Any) -> Store:
        options.setdefault("limits", FAST)
        store = Store(server.url, instance, protocol, **options)
        await store.start()
        made.append(store)
        return store

    yield make
    for store in made:
        await store.close(1.0)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    yield site
    await site.close()


@pytest.fixture
async def checked_client(says: Says, client_of: ClientOf) -> AsyncIterator[httpx.AsyncClient]:
    """Checks after the test that the service still answers."""
    core = says()
    client = client_of(core)
    yield client
    assert core.streams == [], "a bad request reached the core"
    response = await client.post(CHAT, json={"messages": USER})
    assert response.status_code == 200
    assert core.outcomes == ["finished"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    program = executable()
    if program is None:
        pytest.skip("no browser is installed; on Debian: apt-get install chromium")
    browser = Browser()
    await browser.start(program, tmp_path_factory.mktemp("profile"))
    yield browser
    await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def browser(chromium: Browser) -> AsyncIterator[Browser]:
    """A tab of the test's own."""
    await chromium.open_tab()
    yield chromium
    await chromium.close_tab()


@pytest_asyncio.fixture(loop_scope="module")
async def serve(tokenizer: Tokenizer) -> AsyncIterator[Serve]:
    """Serve an app over a core on a port of its own; the URL."""
    running: list[tuple[uvicorn.Server, asyncio.Task[None]]] = []

    async def begin(
        core: FakeCore,
        history: History | None = None,
        wrap: Callable[..., ASGIApp] | None = None,
    ) -> str:
        core.max_seq_len = 4096  # the page asks for 512 tokens if nobody says otherwise
        app: ASGIApp = make_app(core, tokenizer, HttpSettings("tiny"), history=history)
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
