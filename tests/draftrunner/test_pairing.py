from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftrunner.pairing import Vocabulary, compare

SAME = Vocabulary(pieces=("<s>", "</s>", "he", "llo"), special=frozenset({0, 1}), begin=0, end=1, size=4)


def test_the_same_vocabularies_agree() -> None:
    comparison = compare(SAME, SAME)
    assert comparison.agrees
    assert comparison.first_differing_id is None
    assert comparison.sentence == "the tokenizers agree on all 4 ids"


@pytest.mark.parametrize(
    ("draft", "token_id", "complaint"),
    [
        (
            ("<s>", "</s>", "hello", "llo"),
            2,
            "the token 'he' of the target and the token 'hello' of the draft",
        ),
        (
            ("<s>", "</s>", "he", "llo", "<tool>"),
            4,
            "no token of the target and the token '<tool>' of the draft",
        ),
        (("<s>", "</s>", "he"), 3, "the token 'llo' of the target and no token of the draft"),
        (("</s>", "<s>", "llo", "he"), 0, "the special token '<s>' of the target"),
    ],
)
def test_the_first_id_that_differs_is_named(draft: tuple[str, ...], token_id: int, complaint: str) -> None:
    comparison = compare(SAME, replace(SAME, pieces=draft))
    assert not comparison.agrees
    assert comparison.first_differing_id == token_id
    assert f"first at id {token_id}: " in comparison.sentence
    assert complaint in comparison.sentence


def test_a_token_that_is_special_on_one_side_only_differs() -> None:
    comparison = compare(SAME, replace(SAME, special=frozenset({0})))
    assert comparison.first_differing_id == 1
    assert "the special token '</s>' of the target and the token '</s>' of the draft" in comparison.sentence


@pytest.mark.parametrize("other", [{"begin": None}, {"end": 0}])
def test_texts_that_begin_or_end_otherwise_differ(other: dict[str, int | None]) -> None:
    comparison = compare(SAME, replace(SAME, **other))  # type: ignore[arg-type]
    assert not comparison.agrees
    assert comparison.first_differing_id is None
    assert "begins and ends" in comparison.sentence


@pytest.mark.parametrize("sizes", [(4, 64), (64, 4), (64, 64)])
def test_ids_beyond_the_tokenizers_are_padding_and_reported(sizes: tuple[int, int]) -> None:
    comparison = compare(replace(SAME, size=sizes[0]), replace(SAME, size=sizes[1]))
    assert comparison.agrees
    assert comparison.sentence == "the tokenizers agree on all 4 ids; 60 more are unused padding"


# --- tokenizers of transformers --------------------------------------------------------------


@pytest.mark.slow
def test_tokenizers_that_differ_in_one_token_are_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import AutoTokenizer

    from draftrunner.pairing import compare_tokenizers
    from tests.fakes.tiny_lm import build_tiny_lm

    folder = build_tiny_lm(tmp_path / "target")
    target = AutoTokenizer.from_pretrained(folder)
    other = AutoTokenizer.from_pretrained(folder)
    size = len(target)
    assert compare_tokenizers(target, other, target_size=size, draft_size=size + 8).agrees
    other.add_tokens(["<tool>"])
    comparison = compare_tokenizers(target, other, target_size=size, draft_size=size + 8)
    assert comparison.first_differing_id == size
    assert "no token of the target and the token '<tool>' of the draft model" in comparison.sentence
    other = AutoTokenizer.from_pretrained(folder, eos_token="<|im_start|>")
    assert not compare_tokenizers(target, other, target_size=size, draft_size=size).agrees


@pytest.mark.slow
def test_a_tokenizer_of_another_family_is_refused_at_its_first_id(tmp_path: Path) -> None:
    """Built like Gemma's: pieces that begin with a low line, and padding, end and beginning in front."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from draftrunner.pairing import compare_tokenizers
    from tests.fakes.tiny_lm import build_tiny_lm

    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *"\u2581abcdefghijklmnopqrstuvwxyz"]
    other = Tokenizer(models.BPE({piece: place for place, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    other.pre_tokenizer = pre_tokenizers.Metaspace()
    other.decoder = decoders.Metaspace()
    fast: Any = PreTrainedTokenizerFast
    gemma_like = fast(
        tokenizer_object=other, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>"
    )
    target = AutoTokenizer.from_pretrained(build_tiny_lm(tmp_path / "target"))
    comparison = compare_tokenizers(target, gemma_like, target_size=len(target), draft_size=len(gemma_like))
    assert comparison.first_differing_id == 0
    assert (
        "the special token '<|im_start|>' of the target and the special token '<pad>'" in comparison.sentence
    )
