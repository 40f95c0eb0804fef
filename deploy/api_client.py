"""The HTTP client of ``baton status``, ``top`` and ``chat``, and their errors."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

import httpx
import typer

from coordinator.record.settings import safe_url

API_KEY = "BATON_API_KEY"
Url = Annotated[str, typer.Option(envvar="BATON_URL", help="Where the coordinator listens.")]
_TIMEOUT = httpx.Timeout(5.0)


class ApiError(Exception):
    """The coordinator cannot be reached or refuses; the message is for the user. ``status`` is 0
    without an answer."""

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class ApiClient:
    """A client of the coordinator at ``url``. ``environ`` has the API key, which is never on a
    command line. Every method raises ApiError, whose message shows no password of ``url``."""

    def __init__(
        self, url: str, environ: Mapping[str, str], timeout: httpx.Timeout = _TIMEOUT
    ) -> None:
        # Clients of OpenAI's API are given the URL with /v1.
        self.url = url.rstrip("/").removesuffix("/v1").rstrip("/")
        self._shown_url = safe_url(url)
        self._headers = _key_header(environ)
        self._http = httpx.Client(timeout=timeout, headers=self._headers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **params: int) -> httpx.Response:
        with self._reached():
            answer = self._http.get(f"{self.url}{path}", params=params)
            self._require_ok(answer)
            return answer

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        with self._reached():
            answer = self._http.post(f"{self.url}{path}", json=body)
            self._require_ok(answer)
            return answer

    def post_lines(self, path: str, body: Mapping[str, Any]) -> Iterator[str]:
        """Yield the lines of the answer as they come. Dropping the iterator cancels the request."""
        with (
            self._reached(),
            self._http.stream("POST", f"{self.url}{path}", json=body) as answer,
        ):
            if answer.is_error:
                answer.read()
            self._require_ok(answer)
            yield from answer.iter_lines()

    @contextlib.contextmanager
    def parsing(self) -> Iterator[None]:
        """Raise ApiError if code inside fails on an answer that is not Baton's."""
        try:
            yield
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ApiError(f"what answers at {self._shown_url} is not Baton") from error

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            advice = "--url or BATON_URL says where Baton listens"
            raise ApiError(f"no answer from {self._shown_url}: {error}; {advice}") from error

    def _require_ok(self, answer: httpx.Response) -> None:
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            advice = f"set {API_KEY} to one of the service's API keys"
            problem = f"does not know the key in {API_KEY}" if self._headers else "wants a key"
            raise ApiError(f"{self._shown_url} {problem}; {advice}", answer.status_code)
        if answer.status_code != httpx.codes.OK:
            reason = _reason(answer)
            message = f"{self._shown_url} answers HTTP {answer.status_code}: {reason}"
            raise ApiError(message, answer.status_code, reason)


def _key_header(environ: Mapping[str, str]) -> dict[str, str]:
    """The header with the key; none without a key. Raises typer.BadParameter, without showing the
    key, if no header can carry it."""
    key = environ.get(API_KEY, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise typer.BadParameter(f"{API_KEY} has characters that no header can carry")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _reason(answer: httpx.Response) -> str:
    """The message in an error's body; without one, the phrase of the status."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase
