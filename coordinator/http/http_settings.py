"""Settings of the HTTP edge."""

from dataclasses import dataclass

from coordinator.http.auth.api_keys import ApiKey
from coordinator.http.cache_salt import ISOLATIONS, Isolation

# 32 is about twice what a token takes in scripts that JSON escapes, \uXXXX for a letter.
_BYTES_PER_TOKEN = 32
_MIN_BODY_BYTES, _MAX_BODY_BYTES = 8 * 1024 * 1024, 32 * 1024 * 1024


@dataclass(frozen=True)
class HttpSettings:
    """What the edge serves and the most it takes. Raises ValueError that names the setting.

    ``max_stops`` and ``max_stop_len`` (characters) bound a request's stop strings; ``max_choices``
    bounds n, and prompts × n; ``max_prompt_logprobs`` bounds an answer's log-probabilities of
    prompts; ``max_body_bytes`` follows from the model's context where it is None;
    ``max_held_body_bytes`` bounds bodies that wait to be read, of which one client has half; a
    request's head must be whole within ``head_timeout_s`` and its body within ``body_timeout_s``; a
    client that reads nothing for ``write_timeout_s`` has left. With ``api_keys`` every request
    needs one of them. Pages of ``allowed_origins`` ("*": all) may call the API from a browser.
    Requests must name one of ``allowed_hosts`` or a loopback name as their host ("*": any). With
    ``prefix_cache_isolation`` "key" only requests of one API key share prefixes."""

    served_model_name: str
    max_body_bytes: int | None = None
    max_held_body_bytes: int = 1024 * 1024 * 1024
    max_n: int = 128
    max_choices: int = 1024
    max_stops: int = 64
    max_stop_len: int = 1024
    max_stop_token_ids: int = 1024
    max_logit_bias: int = 1024
    max_prompt_logprobs: int = 512 * 1024
    head_timeout_s: float = 30.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    api_keys: tuple[ApiKey, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ("*",)
    prefix_cache_isolation: Isolation = "off"

    def __post_init__(self) -> None:
        if not self.served_model_name or not self.served_model_name.isprintable():
            raise ValueError(f"served_model_name is {self.served_model_name!r}; give it a name")
        if self.prefix_cache_isolation not in ISOLATIONS:
            found = self.prefix_cache_isolation
            raise ValueError(f"prefix_cache_isolation: {found!r} is neither off nor key")
        if self.prefix_cache_isolation == "key" and not self.api_keys:
            raise ValueError("prefix_cache_isolation: 'key' needs API keys (BATON_API_KEYS)")
        for name, value in vars(self).items():
            if not isinstance(value, str | tuple | None) and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value!r}")

    def body_cap(self, max_position: int) -> int:
        """The most bytes of a body, for a model of so many positions. Every byte is read on the
        loop that streams, so there are no more of them than a prompt may need."""
        if self.max_body_bytes is not None:
            return self.max_body_bytes
        return max(_MIN_BODY_BYTES, min(_MAX_BODY_BYTES, _BYTES_PER_TOKEN * max_position))
