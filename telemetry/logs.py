"""One log line per event, with the request's id bound to it.

    log = logging.getLogger(__name__)
    log.info("placed", extra={"worker": instance, "attempt": 2})

prints ``12:00:01.234 INFO coordinator placed http_id=ab12 worker=p0 attempt=2``, or the same as
one JSON object. Prompts and outputs must not be logged. Fields that look like a secret are masked
here, in case one was logged by mistake.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

_http_id: ContextVar[str] = ContextVar("baton_http_id", default="")

_NOT_FIELDS = {"message", "asctime", "taskName", "color_message"}  # the last one is uvicorn's
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | _NOT_FIELDS
_SECRET_NAME = re.compile(r"authorization|api_?key|password|passwd|secret|bearer", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(\w+://[^\s/@]*?:)[^\s/@]+@")
_BARE = re.compile(r"[\w.,:;/@%+*<>()\[\]{}!?&$#~^|'-]+\Z")
_UNSEEN = re.compile("[\x7f-\x9f\u2028\u2029]")
_MAX_LEN = 8000


@contextmanager
def bind_request(http_id: str) -> Iterator[None]:
    """Context in which every logged line has the field ``http_id``, also in tasks started there."""
    token = _http_id.set(http_id)
    try:
        yield
    finally:
        _http_id.reset(token)


def bound_request() -> str:
    """The id that ``bind_request`` bound; "" outside of it."""
    return _http_id.get()


def request_fields(http_id: str, request_id: str, attempt: int) -> dict[str, object]:
    """``extra`` of a line about a request, the same in every service: ``http_id`` is the client's
    X-Request-Id, as ``bind_request`` gives it, ``request_id`` the id in /v1/requests/{id}."""
    return {"http_id": http_id, "request_id": request_id, "attempt": attempt}


def configure_logging(
    service: str, level: str = "info", json: bool = False, stream: TextIO | None = None
) -> None:
    """Send all logging to one stream (stderr by default) in Baton's format.

    Raises ValueError for an unknown ``level``. A second call replaces the first.
    """
    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise ValueError(f"log level must be one of debug, info, warning, error; got {level!r}")
    handler = LineHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines(service) if json else KeyValueLines(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(levels[level.upper()])


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream. Lines that cannot be written, because the disk is full or the
    reader is gone, are dropped, and their number is logged before the next line that can be
    written."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._num_dropped = 0
        self._reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
            if self._num_dropped:
                self.flush()  # raises while the stream cannot be written
                line = self.format(self._dropped()) + self.terminator + line
            self.stream.write(line + self.terminator)
            self.flush()
            self._num_dropped = 0
        except OSError as error:
            self._num_dropped += 1
            self._reason = error.strerror or str(error)
        except Exception:
            self.handleError(record)

    def _dropped(self) -> logging.LogRecord:
        what = "up to %d lines of this log could not be written: %s"
        args = self._num_dropped, self._reason
        return logging.LogRecord(__name__, logging.WARNING, __file__, 0, what, args, None)


class KeyValueLines(logging.Formatter):
    """``time LEVEL service message key=value …``, always on one line."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock}.{int(record.msecs):03d} {record.levelname} {self._service}"
        pairs = [f"{key}={_word(value)}" for key, value in _fields(self, record).items()]
        return " ".join([head, _one_line(_masked(record.getMessage())), *pairs])


class JsonLines(logging.Formatter):
    """One JSON object a line: ts (Unix seconds), level, service, message and the fields."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": round(record.created, 6),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": _masked(record.getMessage()),
            **_fields(self, record),
        }
        return json.dumps(line, ensure_ascii=False, default=str)


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if http_id := _http_id.get():
        fields["http_id"] = http_id
    for key, value in vars(record).items():
        # A library's own mark begins so: Ray gives every record of its processes one.
        if key not in _STANDARD and not key.startswith("_"):
            fields[key] = "***" if _SECRET_NAME.search(key) else _plain(value)
    if record.exc_info:
        fields["exception"] = _masked(formatter.formatException(record.exc_info))
    return fields


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | bool | None) else _masked(str(value))


def _masked(text: str) -> str:
    if len(text) > _MAX_LEN:
        text = text[:_MAX_LEN] + "…"
    return _URL_PASSWORD.sub(r"\1***@", text) if "://" in text else text


def _word(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if _BARE.match(text) else _quoted(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else _quoted(text)[1:-1]


def _quoted(text: str) -> str:
    """As a JSON string, without what a terminal could take for a command or the end of a line."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
