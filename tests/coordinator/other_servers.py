"""Which fields the requests of OpenAI, of Anthropic and of vLLM have.

vLLM's are those of ``ChatCompletionRequest``, ``CompletionRequest``, ``ResponsesRequest`` and
``TokenizeRequest`` in its ``entrypoints`` (main, 2026), and the older ones that its documentation
had up to 0.11. The others are read from the installed packages ``openai`` and ``anthropic``.
"""

from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaMessageParams
from anthropic.types.message_create_params import MessageCreateParamsBase as MessageParams
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams

_VLLM = """
model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking
length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs
logprob_token_ids allowed_token_ids bad_words echo add_special_tokens response_format
structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params
ec_transfer_params vllm_xargs repetition_detection thinking_token_budget stream_interval
"""
_VLLM_CHAT = """
messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning
parallel_tool_calls add_generation_prompt continue_final_message documents chat_template
chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text
"""
_VLLM_COMPLETION = "prompt suffix prompt_embeds"
_VLLM_RESPONSES = """
background include input instructions max_output_tokens max_tool_calls metadata model logit_bias
parallel_tool_calls previous_response_id prompt reasoning service_tier store stream temperature text
tool_choice tools top_logprobs top_p top_k truncation user skip_special_tokens
include_stop_str_in_output prompt_cache_key request_id mm_processor_kwargs priority cache_salt
enable_response_messages previous_input_messages previous_response structured_outputs
repetition_penalty seed stop ignore_eos vllm_xargs
"""
_VLLM_MESSAGES = """
model messages max_tokens metadata output_config stop_sequences stream system temperature
tool_choice tools top_k top_p kv_transfer_params chat_template_kwargs
"""
_VLLM_BEFORE = """
best_of early_stopping guided_json guided_regex guided_choice guided_grammar structural_tag
guided_decoding_backend guided_whitespace_pattern logits_processors
"""
_VLLM_TOKENIZE = """
model prompt messages add_special_tokens add_generation_prompt return_token_strs tools
continue_final_message chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs
"""
_VLLM_STRUCTURED = """
json regex choice grammar json_object disable_any_whitespace disable_additional_properties
whitespace_pattern structural_tag
"""
_VLLM_PATHS = """
/v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/messages/count_tokens
/v1/models /tokenize /detokenize /health /ping /version /metrics /load /openapi.json
/v1/responses/{response_id} /v1/responses/{response_id}/cancel /v1/chat/completions/batch
/v1/chat/completions/render /v1/completions/render /v1/embeddings /v1/audio/transcriptions
/v1/audio/translations /pooling /classify /score /rerank /inference/v1/generate /invocations
/tokenizer_info
"""

VLLM_CHAT = frozenset(f"{_VLLM}{_VLLM_CHAT}".split())
VLLM_COMPLETION = frozenset(f"{_VLLM}{_VLLM_COMPLETION}".split())
VLLM_RESPONSES = frozenset(_VLLM_RESPONSES.split())
VLLM_MESSAGES = frozenset(_VLLM_MESSAGES.split())
VLLM_BEFORE = frozenset(_VLLM_BEFORE.split())
VLLM_TOKENIZE = frozenset(_VLLM_TOKENIZE.split())
VLLM_STRUCTURED = frozenset(_VLLM_STRUCTURED.split())
VLLM_NOT_ALWAYS = {
    "max_tool_calls": "ignored",
    "ResponseRequest.prompt": "refused",
    "MessagesRequest.metadata": "ignored",
    "prompt_cache_key": "ignored",
    "user": "ignored",
    "return_token_offsets": "ignored",
    "return_mm_kwargs": "ignored",
    "session_id": "ignored",
    "suffix": "refused",
    "chat_template": "with a flag",
    "media_io_kwargs": "with a flag",
    "mm_processor_kwargs": "with a flag",
    "priority": "with a flag",
    "prompt_embeds": "with a flag",
    "routed_experts_prompt_start": "with a flag",
    "watermarking": "with a flag",
}
"""What vLLM does with those of its fields that it does not simply act on, in all requests or in the
one that is named."""

VLLM_PATHS = frozenset(_VLLM_PATHS.split())

OPENAI_CHAT = frozenset(ChatParams.__annotations__) | {"stream"}
OPENAI_COMPLETION = frozenset(CompletionParams.__annotations__) | {"stream"}
OPENAI_RESPONSES = frozenset(ResponseParams.__annotations__) | {"stream"}
_HEADERS = {"betas", "user_profile_id", "workspace_id"}
_MESSAGES = MessageParams.__annotations__ | BetaMessageParams.__annotations__
ANTHROPIC_MESSAGES = (frozenset(_MESSAGES) | {"stream"}) - _HEADERS
