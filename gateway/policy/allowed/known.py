"""Request fields that servers are known to take on `/v1/chat/completions` and `/v1/completions`.

A contract test holds every one of them against every table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFields:
    """What one server takes.

    Attributes:
        source: Where the list was read.
    """

    server: str
    version: str
    source: str
    fields: frozenset[str]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPENAI = KnownFields(
    server="OpenAI",
    version="openai 3.57",
    source="the SDK's CompletionCreateParams, of chat and of completions",
    fields=_words(
        """
        audio best_of echo frequency_penalty function_call functions logit_bias logprobs
        max_completion_tokens max_tokens messages metadata modalities model moderation n
        parallel_tool_calls prediction presence_penalty prompt prompt_cache_key prompt_cache_options
        prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop
        store stream stream_options suffix temperature tool_choice tools top_logprobs top_p user
        verbosity web_search_options
        """
    ),
)

VLLM = KnownFields(
    server="vLLM",
    version="0.32.0",
    source="ChatCompletionRequest and CompletionRequest in vllm/entrypoints/openai/*/protocol.py; "
    "guided_* and best_of are older releases'",
    fields=_words(
        """
        add_generation_prompt add_special_tokens allowed_token_ids bad_words best_of cache_salt
        chat_template chat_template_kwargs continue_final_message documents ec_transfer_params echo
        frequency_penalty guided_choice guided_grammar guided_json guided_regex ignore_eos
        include_reasoning include_stop_str_in_output kv_transfer_params length_penalty logit_bias
        logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs messages min_p
        min_tokens mm_payload mm_processor_kwargs model n parallel_tool_calls presence_penalty priority
        prompt prompt_embeds prompt_logprobs reasoning_effort repetition_detection repetition_penalty
        request_id response_format return_mm_kwargs return_prompt_text return_token_ids
        return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start seed session_id
        skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream stream_interval
        stream_options structured_outputs suffix temperature thinking_token_budget tool_choice tools
        top_k top_logprobs top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs
        watermarking
        """
    ),
)

SGLANG = KnownFields(
    server="SGLang",
    version="0.5.23",
    source="ChatCompletionRequest, CompletionRequest and PDRoutingFields in "
    "sglang/srt/entrypoints/openai/protocol.py",
    fields=_words(
        """
        best_of bootstrap_host bootstrap_port bootstrap_room cache_salt chat_template_kwargs
        continue_final_message custom_labels custom_logit_processor custom_params data_parallel_rank
        disagg_prefill_dp_rank ebnf echo extra_key frequency_penalty ignore_eos images_config input_ids
        json_schema logit_bias logprobs lora_path max_completion_tokens max_dynamic_patch max_tokens
        messages min_dynamic_patch min_p min_tokens mm_processor_kwargs model n no_stop_trim
        parallel_tool_calls presence_penalty priority prompt reasoning_effort regex repetition_penalty
        response_format return_cached_tokens_details return_flat_raw_output_top_logprobs
        return_flat_raw_top_logprobs_b64 return_hidden_states return_input_ids_in_sglext return_meta_info
        return_output_ids_in_sglext return_prompt_token_ids return_routed_experts return_sampling_mask
        return_spec_tokens_details return_token_ids rid routed_dp_rank routed_experts_start_len
        sampling_logprobs_mode seed separate_reasoning session_id session_params skip_special_tokens stop
        stop_regex stop_token_ids stream stream_options stream_reasoning suffix task temperature thinking
        tool_choice tools top_k top_logprobs top_p use_audio_in_video user video_config watermark
        """
    ),
)

KNOWN: tuple[KnownFields, ...] = (OPENAI, VLLM, SGLANG)
