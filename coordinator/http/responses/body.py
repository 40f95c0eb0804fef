"""The body of a response before its output: what it says of the request."""

import time

from coordinator.http.chat_schemas import TextFormat
from coordinator.http.responses.request import (
    ReasoningSettings,
    ResponseRequest,
    TextSettings,
)
from coordinator.http.responses.schemas import ResponseBody
from transport.wire.sampling import SamplingParams


def body_of(
    request: ResponseRequest, sampling: SamplingParams, response_id: str, model: str
) -> ResponseBody:
    """The body of a response in progress, by the request's fields and the defaults of those that
    it lacks."""
    text = request.text or TextSettings()
    return ResponseBody(
        id=response_id,
        created_at=int(time.time()),
        status="in_progress",
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        model=model,
        output=[],
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        prompt_cache_key=request.prompt_cache_key,
        reasoning=request.reasoning or ReasoningSettings(),
        safety_identifier=request.safety_identifier,
        store=request.is_kept,
        temperature=sampling.temperature,
        text=TextSettings(format=text.format or TextFormat(), verbosity=text.verbosity),
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_logprobs=request.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=request.truncation or "disabled",
        user=request.user,
    )
