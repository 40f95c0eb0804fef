"""The settings of the record: timing of the store, limits of stored responses, URL and password of
Redis."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from coordinator.record import keys

_FORM = (
    "the form is redis://[[user]:password@]host[:port][/database], with / # ? @ % as "
    "%2F %23 %3F %40 %25; a password in BATON_REDIS_PASSWORD is taken as it is"
)
URL = "BATON_REDIS_URL"
PASSWORD = "BATON_REDIS_PASSWORD"


@dataclass(frozen=True)
class StoreLimits:
    """Timing and size of the store. ``batch_window_s``: how long a record may wait for its batch.
    ``end_wait_s``: how long the end of a response may wait for its record. ``max_ended``: how many
    records of ended requests are kept in memory; records of open requests are always kept."""

    batch_window_s: float = 0.01
    end_wait_s: float = 0.1
    max_batch: int = 64
    call_timeout_s: float = 2.0
    start_timeout_s: float = 1.0
    heartbeat_s: float = 2.0
    presence_ttl_s: float = keys.PRESENCE_TTL_S
    retain_s: float = 300.0
    max_ended: int = 20_000
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0


@dataclass(frozen=True)
class ResponseLimits:
    """Limits of the responses stored for clients. A response is kept for ``response_ttl_s`` after
    its last use (0: not at all). All together take at most ``response_bytes``: beyond that the
    least recently used response is dropped. A response above ``max_response_bytes`` is not stored,
    and a conversation above ``max_conversation_bytes`` cannot be continued. The end of a response
    waits at most ``keep_wait_s`` until it is stored. Raises ValueError that names the setting."""

    response_ttl_s: int = 3600
    response_bytes: int = 256 * 1024 * 1024
    max_response_bytes: int = 4 * 1024 * 1024
    max_conversation_bytes: int = 4 * 1024 * 1024
    keep_wait_s: float = 0.5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise ValueError(f"{name}: {value} is negative")


def safe_url(url: str) -> str:
    """``url`` without user, password and options, for logs and errors. Accepts any text."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    rest = re.split(r"[?&](?:username|password)=", rest)[0]
    if "@" in rest:
        rest = "***@" + rest.rpartition("@")[2]
    return scheme + separator + rest.partition("?")[0]


def check_redis_url(url: str, setting: str = URL) -> None:
    """Check a Redis URL. Raises ValueError, naming ``setting``, for anything that redis-py would
    misread or silently replace by a default. The error shows no part of the URL: in a malformed URL
    the password may be anywhere."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        if parts.fragment or "@" in parts.path + parts.query or re.search(r"[\x00-\x20]", url):
            raise ValueError  # the rest of a password; or what urlsplit would silently remove
    except ValueError:
        raise ValueError(f"{setting}: is not a URL; {_FORM}") from None
    if parts.scheme not in ("redis", "rediss", "unix") or "://" not in url:
        raise ValueError(f"{setting}: must start with redis://, rediss:// or unix://")
    if parts.scheme == "unix":
        if not parts.path.startswith("/") or parts.path == "/":
            raise ValueError(f"{setting}: needs the path of a socket: unix:///path")
    elif not parts.hostname:
        raise ValueError(f"{setting}: names no host; {_FORM}")
    elif not re.fullmatch(r"(/\d*)?", parts.path):
        raise ValueError(f"{setting}: the path must be a database number (/0); {_FORM}")


def check_redis_password(url: str, password: str) -> None:
    """Check that only one password is given. Raises ValueError if ``url`` has a password too, which
    redis-py would prefer."""
    parts = urlsplit(url)
    if password and (parts.password or re.search(r"(^|&)password=", parts.query)):
        raise ValueError(f"{PASSWORD}: {URL} holds a password as well; set only one")
