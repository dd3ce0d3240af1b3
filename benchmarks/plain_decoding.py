"""Compares the embedded backend's forwards with transformers' own, turn by turn in one process.

    python benchmarks/plain_decoding.py [--model demo] [--dtype bfloat16] [--rounds 8] [--tokens 128]

Prints plain decoding speed as a share of `model.generate(do_sample=False)` with its KV cache (more than
1 is faster), and what a forward costs by the number of tokens that it verifies.
"""

from __future__ import annotations

import argparse
import os
import statistics
from queue import Queue
from typing import Any

# As the backend's command does; read once, when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from turns import say, taking_turns

from draftrunner.embedded.engine import Limits
from draftrunner.embedded.generation import Ask, Emission
from draftrunner.embedded.sampling import Sampling
from draftrunner.embedded.server import assemble
from draftrunner.embedded.target import LanguageModel
from draftrunner.weights import find_checkpoint, load_model, load_tokenizer

PROMPT = "Explain in detail, step by step, how a bicycle stays upright while it is moving. " * 6
WIDTHS = (1, 2, 4, 6, 9, 17)
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    asked = parser.parse_args()

    checkpoint = find_checkpoint(asked.model)
    model = load_model(checkpoint, asked.dtype)
    tokenizer = load_tokenizer(checkpoint)
    prompt = tokenizer.encode(PROMPT)
    served = LanguageModel(model, end_ids=())
    backend = assemble(
        served,
        tokenizer=tokenizer,
        engine_tokenizer=load_tokenizer(checkpoint),
        model_id=checkpoint.model_id,
        limits=Limits(),
    )
    backend.engine.start()
    say(f"{checkpoint.model_id}, {asked.dtype}, {torch.get_num_threads()} threads")
    say(f"prompt {len(prompt)} tokens, answer {asked.tokens}, {asked.rounds} rounds")
    ours, theirs = taking_turns(
        asked.rounds,
        lambda: answered(backend.engine, prompt, asked.tokens),
        lambda: generated(model, prompt, asked.tokens),
    )
    say(f"generate  {asked.tokens / statistics.median(theirs):7.1f} tok/s, whole answers")
    say(f"engine    {asked.tokens / statistics.median(ours):7.1f} tok/s, whole answers")
    ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
    say(
        f"ratio     {statistics.median(ratios):7.3f} median of rounds, {min(ratios):.3f} to {max(ratios):.3f}"
    )
    backend.engine.close()
    for width, milliseconds in forward_costs(served, prompt, asked.rounds * 4).items():
        say(f"forward of {width:2} tokens {milliseconds:7.2f} ms")


def answered(engine: Any, prompt: list[int], tokens: int) -> None:
    """One plain answer of the engine."""
    events: Queue[Any] = Queue()
    engine.submit(
        [Ask(prompt=tuple(prompt), max_tokens=tokens, sampling=GREEDY)], lambda _, event: events.put(event)
    )
    while not (isinstance(event := events.get(), Emission) and event.finish):
        pass


def generated(model: Any, prompt: list[int], tokens: int) -> None:
    """The same by transformers."""
    ids = torch.tensor([prompt])
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        pad_token_id=0,
    )


def forward_costs(model: LanguageModel, prompt: list[int], rounds: int) -> dict[int, float]:
    """Median milliseconds of a forward by its width, the widths taking turns."""
    cache = model.empty_cache()
    target = model.target(cache)
    target.prefill(prompt)

    def forward(width: int) -> None:
        target.score(prompt[:width])
        target.rewind(len(prompt))

    seconds = taking_turns(rounds, *((lambda width=width: forward(width)) for width in WIDTHS))
    return {width: 1e3 * statistics.median(taken) for width, taken in zip(WIDTHS, seconds, strict=True)}


if __name__ == "__main__":
    main()
