"""What a request asks of its prompts' log-probabilities, and how many there may be."""

from collections.abc import Mapping, Sequence

from coordinator.core.contract import SequenceRequest
from coordinator.http.errors import invalid
from coordinator.http.prompt_logprobs import PromptReader
from coordinator.http.request_schemas import GenerationRequest


def prompt_reader(
    request: GenerationRequest, spec: SequenceRequest, token_bytes: Mapping[int, bytes]
) -> PromptReader | None:
    """What reads the log-probabilities of one choice's prompt; None where it has none."""
    if spec.sampling.prompt_logprobs is None:
        return None
    return PromptReader(
        spec.prompt_ids,
        token_bytes,
        num_echoed=request.num_echoed_logprobs,
        num_own=request.prompt_logprobs,
        names_are_ids=bool(request.return_tokens_as_token_ids),
    )


def check_prompt_logprobs(
    request: GenerationRequest, specs: Sequence[SequenceRequest], most: int
) -> None:
    """Raises ApiError where the answer to ``request`` would have more than ``most`` of them."""
    num = sum(spec.num_prompt_logprobs for spec in specs)
    if num <= most:
        return
    param = "logprobs" if request.prompt_logprobs is None else "prompt_logprobs"
    num_tokens, num_top = sum(spec.num_scored for spec in specs), request.num_prompt_logprobs
    raise invalid(
        param,
        f"{num_tokens} tokens of prompts in all choices, with {num_top} alternatives each, are "
        f"{num} log-probabilities; an answer has at most {most}. Ask for fewer alternatives, or "
        "for fewer prompts or choices at a time.",
    )
