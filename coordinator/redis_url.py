"""The setting ``redis_url``: is it sound, and how may it be shown?"""

import re
from urllib.parse import urlsplit


def safe_url(url: str) -> str:
    """``url`` without user, password and options, for logs and errors. Takes any text."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    rest = re.split(r"[?&](?:username|password)=", rest)[0]
    if "@" in rest:
        rest = "***@" + rest.rpartition("@")[2]
    return scheme + separator + rest.partition("?")[0]


def check_redis_url(url: str) -> None:
    """Raises ValueError, naming the setting and never the password, for what redis-py would
    misread or silently replace by a default."""
    shown = safe_url(url)
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(f"redis_url is not a URL: {shown}") from None
    if parts.scheme not in ("redis", "rediss", "unix") or "://" not in url:
        raise ValueError(f"redis_url must start with redis://, rediss:// or unix://, got {shown}")
    if parts.scheme == "unix":
        if not parts.path.startswith("/") or parts.path == "/":
            raise ValueError(f"redis_url needs the path of a socket (unix:///path), got {shown}")
    elif not parts.hostname:
        raise ValueError(f"redis_url names no host: {shown}")
    elif not re.fullmatch(r"(/\d*)?", parts.path):
        raise ValueError(f"redis_url's path must be a database number (/0), got {shown}")
