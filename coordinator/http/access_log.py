"""The log line of an HTTP request, and its level.

One line a request is at INFO. Of a request that the core has accepted it is ``ended`` of
observer.py, which says more; of any other POST, and of what is refused, it is the one here. GET and
HEAD are at DEBUG: pages, probes and scrapers ask again and again.
"""

import logging

from starlette.types import Scope

from coordinator.http.accounts import account_of

log = logging.getLogger(__name__)

_ACCEPTED = "baton.accepted"
_READS = frozenset({"GET", "HEAD"})
_NOT_NOW = 503


def note_accepted(scope: Scope) -> None:
    """The core has accepted this HTTP request: the line ``ended`` will follow."""
    scope[_ACCEPTED] = True


def log_response(scope: Scope, status: int, took_s: float) -> None:
    """``status`` is what was answered, or CLIENT_LEFT."""
    only_read = scope["method"] in _READS and (status < 400 or status == _NOT_NOW)
    level = logging.DEBUG if only_read or _ACCEPTED in scope else logging.INFO
    fields: dict[str, object] = {"status": status, "took_ms": round(took_s * 1000, 1)}
    if key := account_of(scope).name:
        fields["key"] = key  # its name; the key itself is never kept
    log.log(level, "%s %s", scope["method"], scope["path"], extra=fields)
