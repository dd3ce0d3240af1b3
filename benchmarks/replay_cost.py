"""What a replay with a draft model costs, beside drafting the same answer token by token.

Both run here and now, taking turns; the ratio is theirs, whatever the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

# As the runner's command does; read once, when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import torch
from turns import say, taking_turns

from draftrunner.drafters.draft_model import DraftModelDrafter
from draftrunner.drafters.loading import load_draft_model
from draftrunner.replay import replay

ALLOWED = 1 / 8
KS = range(1, 9)


def main() -> None:
    """Measure and print; fail when a replay costs more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draft-model", default="demo", metavar="PATH|demo")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=128, help="tokens")
    parser.add_argument("--answer", type=int, default=256, help="tokens")
    asked = parser.parse_args()

    model = load_draft_model(asked.draft_model, device=asked.device, memory_gib=8.0)
    # Which tokens they are makes no difference to the time.
    tokens = [(7 * place) % 1000 for place in range(asked.prompt + asked.answer)]
    prompt, answer = tokens[: asked.prompt], tokens[asked.prompt :]
    say(f"{model.name} on {model.device}, {torch.get_num_threads()} threads, {len(answer)} tokens")
    sequentially, replayed = taking_turns(
        asked.rounds,
        lambda: drafted(model.drafter, prompt, answer),
        lambda: replay(prompt, answer, model.drafter, KS),
    )
    ratio = statistics.median(r / s for s, r in zip(sequentially, replayed, strict=True))
    say(f"token by token  {statistics.median(sequentially):7.3f} s")
    say(f"replay          {statistics.median(replayed):7.3f} s, for K = {KS[0]} to {KS[-1]}")
    say(f"ratio           {ratio:7.3f}, allowed {ALLOWED:.3f}")
    sys.exit(ratio > ALLOWED)


def drafted(drafter: DraftModelDrafter, prompt: list[int], answer: list[int]) -> None:
    """Draft every token of the answer, one forward each."""
    session = drafter.open(prompt)
    for token in answer:
        session.propose(1)
        session.extend([token])
    session.close()


if __name__ == "__main__":
    main()
