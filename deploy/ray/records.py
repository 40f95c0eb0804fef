"""Finds the nodes that have the record of a request, or the stored response, that a request names.

With a Redis for each node, which is the default, both are at the node that served the request. All
nodes are asked, which is rare and takes some milliseconds. With one Redis for all, every node has
them.
"""

import re
from urllib.parse import quote

from starlette.requests import Request

from deploy.ray.conversation import previous_response
from deploy.ray.nodes import Nodes
from deploy.ray.pass_through import target

_NAMED = re.compile(r"/v1/(requests|responses)/[^/?]+")
_KEYS = ("authorization", "x-api-key")


def named(request: Request, body: bytes) -> str | None:
    """The path of the record or response that ``request`` names; None if it names none."""
    path = target(request)
    if request.method == "POST" and path == "/v1/responses":
        earlier = previous_response(body)
        return f"/v1/responses/{quote(earlier, safe='')}" if earlier else None
    found = _NAMED.match(path)
    return found[0] if found else None


def key_of(request: Request) -> str:
    """The API key that a client sends, in either header; "" without one."""
    return next((request.headers[name] for name in _KEYS if name in request.headers), "")


async def holders(nodes: Nodes, path: str, request: Request) -> tuple[str, ...]:
    """The nodes that have ``path``, in no order; none if no node has it, or the key is wrong."""
    headers = {name: request.headers[name] for name in _KEYS if name in request.headers}
    answers = await nodes.ask_all(path, headers)
    return tuple(name for name, answer in answers if answer.status == 200)
