"""Settings of the HTTP edge."""

from dataclasses import dataclass

from coordinator.http.auth.api_keys import ApiKey
from coordinator.http.cache_salt import ISOLATIONS, Isolation
from coordinator.http.root_path import checked_root_path

# About twice the bytes of a token in scripts whose letters JSON escapes as \uXXXX.
_BYTES_PER_TOKEN = 32
_MIN_BODY_BYTES, _MAX_BODY_BYTES = 8 * 1024 * 1024, 32 * 1024 * 1024


@dataclass(frozen=True)
class HttpSettings:
    """Names, limits and deadlines of the HTTP edge. Raises ValueError that names the setting.

    - ``max_body_bytes``: None derives it from the model's context.
    - ``max_held_body_bytes``: limit of all bodies that wait to be parsed; one client may hold half
      of it.
    - ``max_choices``: limit of n, and of prompts × n.
    - ``max_stops``, ``max_stop_len`` (characters): limits of the stop strings of a request.
    - ``max_prompt_logprobs``: limit of an answer's log-probabilities of prompts.
    - ``head_timeout_s``, ``body_timeout_s``: time for the whole head and the whole body to arrive.
    - ``write_timeout_s``: a client that reads nothing for so long is disconnected.
    - ``api_keys``: if any are set, each request needs one of them.
    - ``operator_keys``: names of the API keys that may change the pools.
    - ``allowed_origins``: pages that may call the API from a browser; "*": all.
    - ``allowed_hosts``: hosts that requests may name, beside loopback names; "*": any.
    - ``prefix_cache_isolation``: with "key" only requests of one API key share prefixes.
    - ``root_path``: the path below which a proxy serves the API, such as /baton; "": none.
    """

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
    operator_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ("*",)
    prefix_cache_isolation: Isolation = "off"
    root_path: str = ""

    def __post_init__(self) -> None:
        if not self.served_model_name or not self.served_model_name.isprintable():
            raise ValueError(f"served_model_name is {self.served_model_name!r}; give it a name")
        if self.prefix_cache_isolation not in ISOLATIONS:
            found = self.prefix_cache_isolation
            raise ValueError(f"prefix_cache_isolation: {found!r} is neither off nor key")
        if self.prefix_cache_isolation == "key" and not self.api_keys:
            raise ValueError("prefix_cache_isolation: 'key' needs API keys (BATON_API_KEYS)")
        if unknown := set(self.operator_keys) - {key.name for key in self.api_keys}:
            raise ValueError(f"operator_keys: {min(unknown)!r} is the name of no API key")
        if self.root_path != checked_root_path(self.root_path):
            raise ValueError(f"root_path: {self.root_path!r} ends with a slash")
        for name, value in vars(self).items():
            if not isinstance(value, str | tuple | None) and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value!r}")

    def body_cap(self, max_position: int) -> int:
        """Limit of a body in bytes, for a model with so many positions. Each byte is read on the
        event loop that streams, so the limit is what a prompt may need."""
        if self.max_body_bytes is not None:
            return self.max_body_bytes
        return max(_MIN_BODY_BYTES, min(_MAX_BODY_BYTES, _BYTES_PER_TOKEN * max_position))
