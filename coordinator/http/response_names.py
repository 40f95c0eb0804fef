"""The names of responses: those that clients give, as with vLLM, else their own ids.

A client may name a response by the X-Request-Id header or by ``request_id`` in the body. A name may
be used twice, but an id in the core is unique among all that were ever accepted. So the two differ,
and the id is looked up when a client asks for the record of a response.
"""

import re
from collections import OrderedDict

from starlette.types import Scope

NAME_PATTERN = r"[A-Za-z0-9._:/+=@#~-]{1,128}"
"""Pattern of a whole name."""
_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")
_MAX_NAMES = 20_000
_CHOICE = re.compile(r"(.+)(-\d+)")
_IN_SCOPE = "baton.given_name"


class ResponseNames:
    """The ids of the last ``max_names`` responses that clients have named."""

    def __init__(self, max_names: int = _MAX_NAMES) -> None:
        self._max_names = max_names
        self._ids: OrderedDict[str, str] = OrderedDict()

    def named(self, request_id: str, name: str | None) -> str:
        """Record the name of a response and return it; without a name, return ``request_id``."""
        if name is None:
            return request_id
        self._ids[name] = request_id
        self._ids.move_to_end(name)
        if len(self._ids) > self._max_names:
            self._ids.popitem(last=False)
        return name

    def request_id(self, response_id: str) -> str:
        """The newest id under a name, which may end with the number of a choice. ``response_id``:
        the name, with or without the prefix of an API's response ids. If no response has this name,
        it is the id itself."""
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
    """Note the name that the client gives in the headers of this HTTP request."""
    scope[_IN_SCOPE] = name


def noted_name(scope: Scope) -> str | None:
    """The name that ``note_name`` noted for this HTTP request, or None."""
    name: str | None = scope.get(_IN_SCOPE)
    return name
