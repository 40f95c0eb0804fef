"""The setting ``redis_url``: is it sound, and how may it be shown?"""

import re
from urllib.parse import urlsplit

_FORM = (
    "the form is redis://[[user]:password@]host[:port][/database], with / # ? @ as %2F %23 %3F %40"
)


def safe_url(url: str) -> str:
    """``url`` without user, password and options, for logs and errors. Takes any text."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    rest = re.split(r"[?&](?:username|password)=", rest)[0]
    if "@" in rest:
        rest = "***@" + rest.rpartition("@")[2]
    return scheme + separator + rest.partition("?")[0]


def check_redis_url(url: str, setting: str = "redis_url") -> None:
    """Raises ValueError, naming ``setting``, for what redis-py would misread or silently replace by
    a default. No part of the URL is shown: in a malformed one the password may be anywhere."""
    try:
        parts = urlsplit(url)
        _ = parts.port
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
