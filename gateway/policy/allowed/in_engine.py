"""`in_engine`: a list of what is refused. All else is the engine's business, speculating or not."""

from __future__ import annotations

from gateway.policy.allowed.model import Ruling, Table, refused

_VLLM = {"vllm": "0.32.0"}
_SGLANG = {"sglang": "0.5.23"}
_EMBEDDED = {"embedded": "any"}

IN_ENGINE = Table(
    rows=(
        refused(
            "tools",
            "waits for a canary of its kind",
            *("tools", "tool_choice", "functions", "function_call"),
        ),
        refused(
            "structured_output",
            "waits for a canary of its kind",
            *("response_format", "structured_outputs"),
            *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        ),
        refused(
            "multimodal",
            "what is not text waits for a canary of its kind",
            *("multimodal", "modalities", "audio"),
        ),
        refused(
            "logit_bias",
            "vLLM answers 400 beside speculation, and so does one of SGLang's methods; "
            "the embedded backend does not implement it",
            "logit_bias",
            engines=_VLLM | _SGLANG | _EMBEDDED,
        ),
        refused(
            "min_p",
            "vLLM answers 400 beside speculation, SGLang does not apply it to drafts; "
            "the embedded backend does not implement it",
            "min_p",
            engines=_VLLM | _SGLANG | _EMBEDDED,
        ),
        refused(
            "penalties",
            "SGLang does not count them within a step; the embedded backend does not implement them",
            *("presence_penalty", "frequency_penalty", "repetition_penalty"),
            engines=_SGLANG | _EMBEDDED,
        ),
        refused("beam_search", "beams are not drafted for", "use_beam_search"),
        refused("several_answers", "several answers have no counts of their own", "n", "best_of"),
        refused("prompt_list", "several prompts have no counts of their own", "prompt_list"),
        refused("echo", "the prompt comes back with the answer", "echo"),
        refused("suffix", "the prompt is more than what the answer continues", "suffix"),
        refused("prompt_logprobs", "the prompt is scored, and not read from a cache", "prompt_logprobs"),
    ),
    otherwise=Ruling(None, "the engine itself decides what it means, speculating or not"),
)
