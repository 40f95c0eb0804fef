"""From the tools and the format of a request to the constraint of its output tokens."""

import logging

from msgspec import structs
from starlette.requests import Request

from coordinator.http.answer_form import form_of
from coordinator.http.bodies.bodies import owner_of
from coordinator.http.errors import ApiError, internal_error, invalid
from coordinator.http.preparation import Prepared
from coordinator.http.request_schemas import ChatRequest
from coordinator.http.warning_header import warn
from coordinator.http.while_connected import while_connected
from coordinator.text.forms import Form, Verdict
from coordinator.text.grammar_checks import ChecksBusy
from coordinator.text.tokenizer import Tokenizer
from transport.wire.sampling import Constraint

log = logging.getLogger(__name__)

_CLOSE, _ANSWER = "\n</think>", "\n\n"
_RETRY_AFTER_S = 2.0


async def constraint_for(
    http: Request, prepared: Prepared, tokenizer: Tokenizer
) -> Constraint | None:
    """The constraint of the request's tokens, or None. Raises ApiError for a schema or grammar that
    cannot be served, and ClientDisconnected."""
    request, grammar = prepared.request, ""
    if (asked := form_of(request)) is not None:
        form, param = asked
        if form.functions and (tools := tokenizer.dialect.tools) is not None:
            form = structs.replace(form, tool_format=tools.name)
        work = _checked(form, param, tokenizer, owner_of(http))
        verdict = await while_connected(work, http.receive)
        grammar = verdict.grammar
        for warning in verdict.warnings:
            warn(http.scope, warning)
    budget = request.thinking_token_budget if isinstance(request, ChatRequest) else None
    is_chat = isinstance(request, ChatRequest)
    thought = tokenizer.thought_of(prepared.prompts[0]) if is_chat else None
    if not grammar and not (thought and budget is not None):
        return None
    if request.min_tokens:
        raise invalid("min_tokens", "cannot be combined with a constrained output")
    if thought is None:
        return Constraint(grammar)
    return Constraint(
        grammar,
        thought_end=thought.end,
        thought_budget=budget,
        closing_ids=tuple(tokenizer.encode(_CLOSE, add_special_tokens=False)),
        answer_ids=tuple(tokenizer.encode(_ANSWER, add_special_tokens=False)),
    )


async def _checked(form: Form, param: str, tokenizer: Tokenizer, owner: str) -> Verdict:
    """The verdict on ``form``, with its grammar. Raises ApiError that names ``param`` or the
    tools."""
    try:
        verdict = await tokenizer.grammar_checks.check(form, owner)
    except ChecksBusy as error:
        raise ApiError(503, str(error), code="overloaded", retry_after_s=_RETRY_AFTER_S) from None
    if verdict.bug:
        log.error("unhandled error while a grammar was checked:\n%s", verdict.bug)
        raise internal_error()
    if verdict.problem:
        raise invalid("tools" if verdict.of_tools else param, verdict.problem, "invalid_grammar")
    return verdict
