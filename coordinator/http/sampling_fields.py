"""The sampling fields of a request, named as in vLLM."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from coordinator.http.request_fields import FieldError, RequestBody

INT32_MAX = 2**31 - 1
_Bias = Annotated[float, Meta(ge=-100, le=100)]
_BIAS_SCHEMA = {"type": "number", "minimum": -100, "maximum": 100}
_bias = msgspec.json.Decoder(_Bias)


class SamplingFields(RequestBody, kw_only=True):
    """How tokens are chosen, and where the output ends."""

    min_tokens: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[Raw, Meta(extra_json_schema=_BIAS_SCHEMA)]] | None = None
    stop: str | list[Annotated[str, Meta(min_length=1)]] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop == "":
            raise FieldError("stop[0]", "must not be empty")
        self.token_biases()

    @property
    def stop_strings(self) -> Sequence[str]:
        return (self.stop,) if isinstance(self.stop, str) else self.stop or ()

    def token_biases(self) -> dict[int, float]:
        """``logit_bias`` by token id. Raises FieldError that names the entry."""
        biases = {}
        for key, value in (self.logit_bias or {}).items():
            try:
                biases[int(key)] = _bias.decode(value)
            except msgspec.ValidationError as error:
                raise FieldError(f"logit_bias.{key}", str(error)) from None
            except ValueError:
                raise FieldError(f"logit_bias.{key}", "is not a token id") from None
        return biases
