"""Request fields that other servers have and Baton does not yet: refused, never dropped."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Later:
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


class LaterFields(BaseModel):
    """Each known, none supported: the default is the only value taken."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")

    response_format: Annotated[Any, Later({"type": "text"})] = None
    structured_outputs: Annotated[Any, Later()] = None
    guided_json: Annotated[Any, Later()] = None
    guided_regex: Annotated[Any, Later()] = None
    guided_choice: Annotated[Any, Later()] = None
    guided_grammar: Annotated[Any, Later()] = None
    prompt_logprobs: Annotated[Any, Later()] = None
    use_beam_search: Annotated[Any, Later()] = None
    truncate_prompt_tokens: Annotated[Any, Later()] = None
    return_tokens_as_token_ids: Annotated[Any, Later()] = None
    logits_processors: Annotated[Any, Later()] = None
    bad_words: Annotated[Any, Later()] = None
    allowed_token_ids: Annotated[Any, Later()] = None
    vllm_xargs: Annotated[Any, Later()] = None
    kv_transfer_params: Annotated[Any, Later()] = None
    priority: Annotated[Any, Later(0)] = None


class LaterChatFields(LaterFields):
    tools: Annotated[Any, Later()] = None
    tool_choice: Annotated[Any, Later("none", "auto")] = None
    functions: Annotated[Any, Later()] = None
    function_call: Annotated[Any, Later("none", "auto")] = None
    audio: Annotated[Any, Later()] = None
    modalities: Annotated[Any, Later(["text"])] = None
    web_search_options: Annotated[Any, Later()] = None
    reasoning_effort: Annotated[Any, Later("none")] = None
    echo: Annotated[Any, Later()] = None
    continue_final_message: Annotated[Any, Later()] = None
    chat_template: Annotated[Any, Later()] = None
    documents: Annotated[Any, Later()] = None


class LaterCompletionFields(LaterFields):
    suffix: Annotated[Any, Later()] = None
    prompt_embeds: Annotated[Any, Later()] = None
