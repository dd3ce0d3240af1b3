"""`gateway_loop`: a list of what is allowed. What is in none of its rows is refused as unknown.

The loop turns output into prompt: whatever depends on where the prompt ends, or on what a call returns
besides its token, would mean something else in it.
"""

from __future__ import annotations

from gateway.policy.allowed.model import (
    UNKNOWN_FIELD,
    Ruling,
    Table,
    allowed,
    refused,
)

GATEWAY_LOOP = Table(
    rows=(
        allowed("names the target", "model"),
        allowed("becomes prompt ids by the target's own `/tokenize`", "messages", "prompt"),
        allowed(
            "`/tokenize` takes it too, so the prompt ids are those of a plain call",
            *("chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
        ),
        allowed("the gateway writes the answer, streamed or not", "stream", "stream_options"),
        allowed("bounds the loop", "max_tokens", "max_completion_tokens"),
        allowed(
            "depends on nothing but the logits of one position, and is sent with every call",
            *("temperature", "top_p", "top_k"),
        ),
        allowed("found in the text by the gateway, as an engine finds it", "stop"),
        allowed("copied to every call, so that nobody else's prefixes are read", "cache_salt"),
        allowed(
            "says who asks, and changes nothing of the answer",
            *("user", "metadata", "safety_identifier"),
        ),
        allowed(
            "a hint for a prompt cache, which changes nothing of the answer",
            *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        ),
        refused(
            "tools",
            "waits for a canary of its kind",
            *("tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"),
        ),
        refused(
            "structured_output",
            "a grammar starts where the prompt ends",
            *("response_format", "structured_outputs", "json_schema", "regex", "ebnf"),
            *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        ),
        refused(
            "multimodal",
            "token ids say only text",
            *("multimodal", "modalities", "audio", "images_config", "video_config", "use_audio_in_video"),
            *("media_io_kwargs", "mm_processor_kwargs", "mm_payload", "return_mm_kwargs"),
            *("max_dynamic_patch", "min_dynamic_patch"),
        ),
        refused(
            "penalties",
            "counts the tokens of the output, which the loop has turned into prompt",
            *("presence_penalty", "frequency_penalty", "repetition_penalty", "repetition_detection"),
        ),
        refused("logit_bias", "is not copied to the loop's calls", "logit_bias"),
        refused("min_p", "is not copied to the loop's calls", "min_p"),
        refused(
            "logit_processors",
            "alters logits by a rule that is not copied to the loop's calls",
            *("bad_words", "allowed_token_ids", "watermark", "watermarking"),
        ),
        refused(
            "answer_end",
            "ends the answer, or keeps it from ending, by another rule than the loop's",
            *("min_tokens", "ignore_eos", "stop_token_ids", "stop_regex"),
            *("include_stop_str_in_output", "no_stop_trim", "thinking_token_budget"),
        ),
        refused("seed", "a server draws from a seed by the position in the output", "seed"),
        refused(
            "logprobs",
            "one-token calls have no log-probabilities of the answer",
            *("logprobs", "top_logprobs", "logprob_token_ids", "return_tokens_as_token_ids"),
            *("return_flat_raw_output_top_logprobs", "return_flat_raw_top_logprobs_b64"),
            *("return_sampling_mask", "sampling_logprobs_mode"),
        ),
        refused("prompt_logprobs", "the loop's prompts are not the client's", "prompt_logprobs"),
        refused("beam_search", "beams are not drafted for", "use_beam_search", "length_penalty"),
        refused("several_answers", "the loop writes one answer", "n", "best_of"),
        refused("prompt_list", "the loop writes one answer", "prompt_list"),
        refused("echo", "the prompt comes back with the answer", "echo"),
        refused("suffix", "the prompt is more than what the answer continues", "suffix"),
        refused(
            "reasoning",
            "the template or a parser of the server's makes another text of the answer",
            *("reasoning_effort", "include_reasoning", "separate_reasoning", "stream_reasoning"),
            *("thinking", "verbosity"),
        ),
        refused(
            "special_tokens",
            "changes how ids become text, or text ids",
            *("skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens"),
        ),
        refused(
            "prompt_form",
            "`/tokenize` does not take it, so the prompt ids would be others",
            *("chat_template", "documents", "input_ids", "prompt_embeds", "task"),
        ),
        refused(
            "truncation",
            "the prompt would be cut by the server, and again at every step",
            *("truncate_prompt_tokens", "truncation_side"),
        ),
        refused(
            "extra_output",
            "asks for more than text, which the loop's calls do not have for a whole answer",
            *("return_token_ids", "return_prompt_token_ids", "return_prompt_text", "return_token_offsets"),
            *("return_meta_info", "return_hidden_states", "return_routed_experts"),
            *("routed_experts_prompt_start", "routed_experts_start_len"),
            *("return_cached_tokens_details", "return_spec_tokens_details"),
            *("return_input_ids_in_sglext", "return_output_ids_in_sglext"),
            *("stream_options.continuous_usage_stats", "stream_options.include_obfuscation"),
        ),
        refused(
            "engine_call",
            "is about one call to the engine, and the loop makes many",
            *("priority", "request_id", "rid", "session_id", "session_params", "stream_interval"),
            *("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank"),
            *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
            *("kv_transfer_params", "ec_transfer_params", "extra_key", "custom_labels"),
        ),
        refused(
            "extra_args",
            "whatever reads it in the engine may change the answer",
            *("vllm_xargs", "custom_params", "custom_logit_processor"),
        ),
        refused("lora", "shadow evidence and calibration are of the model alone", "lora_path"),
        refused(
            "platform",
            "a service of OpenAI's own platform",
            *("store", "service_tier", "prediction", "moderation", "web_search_options"),
        ),
    ),
    otherwise=Ruling(UNKNOWN_FIELD, "nobody has decided what it would mean in the loop"),
)
