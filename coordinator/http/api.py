"""The HTTP API over a serving core, compatible with OpenAI's and Anthropic's.

The life of a request:

1. Middleware gives it an id, checks its host and its key, and limits its body.
2. Its body is validated, its prompts tokenized off the event loop, its length checked.
3. Each choice is one ``SequenceRequest``, submitted to the core; all are accepted, or none runs.
4. Tokens come back as a stream, become text, and leave as JSON or as events.
"""

import time
from collections.abc import Callable

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from coordinator.core.contract import Core, History, StoredResponses
from coordinator.http.allowed_hosts import ANY, AllowedHosts
from coordinator.http.allowed_origins import AllowedOrigins
from coordinator.http.app_context import AppContext
from coordinator.http.auth.accounts import Accounts
from coordinator.http.auth.key_check import KeyCheck
from coordinator.http.auth.rate_limit_headers import RATE_LIMIT_HEADERS
from coordinator.http.bodies.bodies import Bodies
from coordinator.http.bodies.body_limit import BodyLimit
from coordinator.http.bodies.parsers import BodyParsers
from coordinator.http.errors import install_error_handlers
from coordinator.http.generation import generate_routes
from coordinator.http.http_settings import HttpSettings
from coordinator.http.messages.routes import messages_routes
from coordinator.http.middleware import HeadRequests, Observed, RequestId
from coordinator.http.openapi import install_openapi
from coordinator.http.request_throttle import RequestThrottle
from coordinator.http.responses.routes import response_routes
from coordinator.http.root_path import RootPath
from coordinator.http.routes_history import history_routes
from coordinator.http.routes_info import info_routes
from coordinator.http.routes_other_servers import other_servers_routes
from coordinator.http.routes_page import page_routes
from coordinator.http.routes_pools import pools_routes
from coordinator.http.warning_header import WARNING_HEADER, Warnings
from coordinator.text.tokenizer import Tokenizer
from telemetry.metrics import Metrics
from telemetry.version import VERSION


def create_app(
    core: Core,
    tokenizer: Tokenizer,
    settings: HttpSettings,
    metrics: Metrics,
    history: History,
    stored: StoredResponses,
    parsers: BodyParsers,
    *,
    now: Callable[[], float],
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The ASGI app.

    ``metrics``: the object that the core feeds too. ``history``: the record of requests; ``now``
    returns Unix seconds by the clock that stamped it. ``stored``: the responses that clients name
    later. ``parsers``: parse heavy bodies. ``clock``: that of the keys' quotas.

    The caller owns core, tokenizer and parsers, and closes them.
    """
    context = AppContext(core, tokenizer, settings, metrics)
    bodies = Bodies(context, parsers)
    app = FastAPI(
        title="Baton", version=VERSION, docs_url=None, redoc_url=None,
        openapi_url=None,
    )  # fmt: skip
    app.include_router(generate_routes(context, bodies))
    app.include_router(response_routes(context, bodies, stored))
    app.include_router(messages_routes(context, bodies))
    app.include_router(info_routes(context, bodies))
    app.include_router(pools_routes(context))
    app.include_router(other_servers_routes(context))
    app.include_router(history_routes(history, now, context.names, core))
    app.include_router(page_routes())
    install_error_handlers(app)
    install_openapi(app, keys=bool(settings.api_keys), root_path=settings.root_path)
    # NOTE: the middleware that is added last is outermost.
    app.add_middleware(Warnings)
    app.add_middleware(HeadRequests)
    app.add_middleware(BodyLimit, max_bytes=settings.body_cap(tokenizer.info.max_position))
    if settings.api_keys:
        app.add_middleware(KeyCheck, accounts=Accounts(settings.api_keys, metrics, clock))
    if settings.allowed_origins:  # outside of KeyCheck: a preflight request has no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=[
                "x-request-id",
                "request-id",
                "retry-after",
                WARNING_HEADER,
                *RATE_LIMIT_HEADERS,
            ],
        )
    if not settings.api_keys and ANY not in settings.allowed_origins:
        app.add_middleware(AllowedOrigins, origins=settings.allowed_origins)
    if ANY not in settings.allowed_hosts:
        app.add_middleware(AllowedHosts, hosts=settings.allowed_hosts)
    app.add_middleware(Observed, metrics=metrics)
    app.add_middleware(RequestId)
    app.add_middleware(RequestThrottle)
    if settings.root_path:
        app.add_middleware(RootPath, root_path=settings.root_path)
    return app
