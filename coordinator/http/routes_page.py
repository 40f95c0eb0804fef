"""The page at ``/``: a playground, the workers and the last requests.

Its static files (page/) are read once. They load nothing from other servers, and the policy they
are sent with forbids it: no other origin, nothing inline, no frame around it. They hold no secret,
so they are open even if the API asks for keys; the page asks its user for one.
"""

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"

_FILES = {
    "/": ("index.html", "text/html"),
    "/page/baton.css": ("baton.css", "text/css"),
    "/page/figures.css": ("figures.css", "text/css"),
}
_SCRIPTS = (
    "baton", "api", "charts", "columns", "dom", "examples", "markdown", "playground", "pools",
    "requests",
)  # fmt: skip
_FILES |= {f"/page/{name}.js": (f"{name}.js", "text/javascript") for name in _SCRIPTS}
PATHS = frozenset(_FILES)

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def page_routes() -> APIRouter:
    router = APIRouter()
    for path, (name, media_type) in _FILES.items():
        _add(router, path, (FOLDER / name).read_bytes(), media_type)
    return router


def _add(router: APIRouter, path: str, content: bytes, media_type: str) -> None:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "etag": etag}

    async def file(http: Request) -> Response:
        if http.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    router.add_route(path, file, methods=["GET"], include_in_schema=False)
