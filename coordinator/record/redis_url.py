"""The settings that say where Redis is and its password: are they sound, how may they be shown?"""

import re
from urllib.parse import urlsplit

_FORM = (
    "the form is redis://[[user]:password@]host[:port][/database], with / # ? @ % as "
    "%2F %23 %3F %40 %25; a password in BATON_REDIS_PASSWORD is taken as it is"
)
URL = "BATON_REDIS_URL"
PASSWORD = "BATON_REDIS_PASSWORD"


def safe_url(url: str) -> str:
    """``url`` without user, password and options, for logs and errors. Takes any text."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    rest = re.split(r"[?&](?:username|password)=", rest)[0]
    if "@" in rest:
        rest = "***@" + rest.rpartition("@")[2]
    return scheme + separator + rest.partition("?")[0]


def check_redis_url(url: str, setting: str = URL) -> None:
    """Raises ValueError, naming ``setting``, for what redis-py would misread or silently replace by
    a default. No part of the URL is shown: in a malformed one the password may be anywhere."""
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
    """Raises ValueError where ``url`` has a password too, which redis-py would prefer."""
    parts = urlsplit(url)
    if password and (parts.password or re.search(r"(^|&)password=", parts.query)):
        raise ValueError(f"{PASSWORD}: {URL} holds a password as well; say one")
