"""Request fields that other servers have and Baton does not yet: refused, never dropped."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Unsupported:
    """Marks a field that passes only when empty or one of ``harmless``: it changes nothing."""

    def __init__(self, *harmless: Any) -> None:
        self._allowed = [None, False, [], {}, "", *harmless]

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._refuse)

    def __get_pydantic_json_schema__(self, _: Any, __: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": self._allowed, "description": "Not supported yet."}

    def _refuse(self, value: Any) -> Any:
        if not any(type(value) is type(other) and value == other for other in self._allowed):
            raise PydanticCustomError("unsupported_parameter", "not supported by this server yet")
        return value


class UnsupportedFields(BaseModel):
    """Each known, none supported: the default is the only value taken."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")

    response_format: Annotated[Any, Unsupported({"type": "text"})] = None
    structured_outputs: Annotated[Any, Unsupported()] = None
    guided_json: Annotated[Any, Unsupported()] = None
    guided_regex: Annotated[Any, Unsupported()] = None
    guided_choice: Annotated[Any, Unsupported()] = None
    guided_grammar: Annotated[Any, Unsupported()] = None
    prompt_logprobs: Annotated[Any, Unsupported()] = None
    use_beam_search: Annotated[Any, Unsupported()] = None
    truncate_prompt_tokens: Annotated[Any, Unsupported()] = None
    return_tokens_as_token_ids: Annotated[Any, Unsupported()] = None
    logits_processors: Annotated[Any, Unsupported()] = None
    bad_words: Annotated[Any, Unsupported()] = None
    allowed_token_ids: Annotated[Any, Unsupported()] = None
    vllm_xargs: Annotated[Any, Unsupported()] = None
    kv_transfer_params: Annotated[Any, Unsupported()] = None
    priority: Annotated[Any, Unsupported(0)] = None


class UnsupportedChatFields(UnsupportedFields):
    tools: Annotated[Any, Unsupported()] = None
    tool_choice: Annotated[Any, Unsupported("none", "auto")] = None
    functions: Annotated[Any, Unsupported()] = None
    function_call: Annotated[Any, Unsupported("none", "auto")] = None
    audio: Annotated[Any, Unsupported()] = None
    modalities: Annotated[Any, Unsupported(["text"])] = None
    web_search_options: Annotated[Any, Unsupported()] = None
    reasoning_effort: Annotated[Any, Unsupported("none")] = None
    echo: Annotated[Any, Unsupported()] = None
    continue_final_message: Annotated[Any, Unsupported()] = None
    chat_template: Annotated[Any, Unsupported()] = None
    documents: Annotated[Any, Unsupported()] = None


class UnsupportedCompletionFields(UnsupportedFields):
    suffix: Annotated[Any, Unsupported()] = None
    prompt_embeds: Annotated[Any, Unsupported()] = None
