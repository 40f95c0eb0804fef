"""The names of responses: what a client calls them, as with vLLM, else their own ids.

A client may name a response by the X-Request-Id header or by ``request_id`` of the body. A name
may come twice, but an id in the core is unique among all that were ever accepted. So the two
differ, and the id is looked up where a client asks for the record of a response.
"""

import re
from collections import OrderedDict

from starlette.types import Scope

NAME_PATTERN = r"[A-Za-z0-9._:/+=@#~-]{1,128}"
"""Of a whole name."""
_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")
_MAX_NAMES = 20_000
_CHOICE = re.compile(r"(.+)(-\d+)")
_IN_SCOPE = "baton.given_name"


class ResponseNames:
    """The ids of the last ``max_names`` responses that their clients have named."""

    def __init__(self, max_names: int = _MAX_NAMES) -> None:
        self._max_names = max_names
        self._ids: OrderedDict[str, str] = OrderedDict()

    def named(self, request_id: str, name: str | None) -> str:
        """The response's name, which is ``request_id`` where its client gives none."""
        if name is None:
            return request_id
        self._ids[name] = request_id
        self._ids.move_to_end(name)
        if len(self._ids) > self._max_names:
            self._ids.popitem(last=False)
        return name

    def request_id(self, response_id: str) -> str:
        """The newest id under a name, which may end with the number of a choice. ``response_id`` is
        the name, with or without what the ids of an API's responses begin with; where no response
        is named so, it is the id itself."""
        prefix = next((each for each in _PREFIXES if response_id.startswith(each)), "")
        bare = response_id.removeprefix(prefix)
        return self._named(bare) or self._named(response_id) or bare

    def _named(self, name: str) -> str | None:
        if name in self._ids:
            return self._ids[name]
        choice = _CHOICE.fullmatch(name)
        if choice is not None and choice[1] in self._ids:
            return self._ids[choice[1]] + choice[2]
        return None


def note_name(scope: Scope, name: str) -> None:
    """The client of the HTTP request of this ASGI scope names it so in its headers."""
    scope[_IN_SCOPE] = name


def noted_name(scope: Scope) -> str | None:
    name: str | None = scope.get(_IN_SCOPE)
    return name
