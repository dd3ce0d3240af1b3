"""A model's tokenizer as files: whole words as tokens, one id around every text, a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ("<s>", "</s>", "<unk>", "<user>", "<assistant>", "<system>", "a", "b", "c", "say", "it", "x")
TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<{{ message.role }}> {{ message.content | trim }} {{ eos_token }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer_files(folder: Path, *, template: str | None = TEMPLATE, **settings: Any) -> Path:
    """Write them as a model's folder holds them, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(WORDS[:6]))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    known = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(known))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
