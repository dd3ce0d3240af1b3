"""Why control is by block, shown live: one engine, a drafter that does not pay, and more and more clients.

Every request is asked of the gateway, which has the embedded backend speculate it or not. Three ways to find
out what that is worth, in one run: a coin for each request (request-level), randomised blocks of time
(switchback, what the gateway reports), and, for one client, every prompt both ways (paired). Beside them what
the engine as a whole makes in a second.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from turns import say

from gateway.cli.client import GatewayClient
from gateway.demo.client import Answer, ChatClient
from gateway.demo.prompts import Prompt, load_prompts
from gateway.demo.setup import register_backend
from gateway.demo.stack import Stack, free_ports, open_stack
from gateway.evidence.loop_costs import load_band
from gateway.evidence.multiplier import Speed, bootstrap_rate, paired_multiplier

WORKLOAD = "summarise"
TENANTS = ("plain", "spec", "switched")
COIN = 20261130
"""Seed of everything drawn here, so that a run can be repeated."""

POLICY = """
version: 1
defaults: {{mode: prod, experimental: true, draft: {draft}, lookahead: {k}}}
rules:
  - {{name: plain, match: {{tenant: plain}}, mode: "off"}}
  - {{name: spec, match: {{tenant: spec}}, prod: {{executor: in_engine, control: {{fraction: 0}}}}}}
  - name: switched
    match: {{tenant: switched}}
    prod: {{executor: in_engine, control: {{block: {block}s, fraction: 0.5}}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A running stack and how it is asked."""

    rest: GatewayClient
    stack: Stack
    model: str
    keys: dict[str, str] = field(repr=False)
    prompts: Sequence[Prompt]
    max_tokens: int
    policy: Path
    numbers: Iterator[int] = field(default_factory=count)

    def ask(self, client: ChatClient, prompt: Prompt) -> Answer:
        """One answer, with the engine's own times."""
        return client.ask(
            prompt.text,
            request_id=f"bench-{next(self.numbers)}",
            workload=prompt.workload,
            max_tokens=self.max_tokens,
        )

    @contextmanager
    def clients(self, *tenants: str) -> Iterator[list[ChatClient]]:
        """A client for each tenant, closed when the block is left."""
        with ExitStack() as open_ones:
            yield [
                open_ones.enter_context(
                    closing(ChatClient(url=self.stack.urls.gateway, key=self.keys[tenant], model=self.model))
                )
                for tenant in tenants
            ]

    def paired(self, rounds: int) -> str:
        """Every prompt both ways, one request at a time, the order turning."""
        pairs: list[tuple[Speed, Speed]] = []
        with self.clients("spec", "plain") as (spec, plain):
            for number in range(rounds):
                for prompt in self.prompts:
                    both = [self.ask(client, prompt) for client in ((spec, plain), (plain, spec))[number % 2]]
                    speeds = [answer.speed for answer in both]
                    pairs.append((speeds[0], speeds[1]) if number % 2 == 0 else (speeds[1], speeds[0]))
        value, low, high = paired_multiplier(pairs, _drawing(0))
        return f"{value:.3f} ({low:.3f} to {high:.3f}, {len(pairs)} pairs)"

    def request_level(self, concurrency: int, seconds: float) -> str:
        """A coin for each request, all in the same batch."""
        arms: dict[bool, list[Speed]] = {True: [], False: []}

        def client(coin: Random, until: float) -> None:
            with self.clients("spec", "plain") as (spec, plain):
                while time.monotonic() < until:
                    speculated = coin.random() < 0.5
                    answer = self.ask(spec if speculated else plain, coin.choice(self.prompts))
                    arms[speculated].append(answer.speed)

        _together(concurrency, seconds, client)
        spec, plain = (bootstrap_rate(arms[arm], _drawing(0)).value for arm in (True, False))
        return f"{spec / plain:.3f} ({len(arms[True])} and {len(arms[False])} requests)"

    def switchback(self, concurrency: int, block: int, blocks: int) -> dict[str, Any]:
        """What the gateway's summary says after so many blocks."""

        def client(coin: Random, until: float) -> None:
            with self.clients("switched") as (switched,):
                while time.monotonic() < until:
                    self.ask(switched, coin.choice(self.prompts))

        _together(concurrency, block * blocks, client)
        time.sleep(2)  # a record is in the store half a second after its request
        band = load_band(concurrency)
        (found,) = (
            bucket["multiplier"]
            for bucket in self.rest.get("/admin/v1/summary")["buckets"]
            if (bucket["action"], bucket["load_band"]) == ("speculate", band)
            and bucket["multiplier"]["n_control"]
        )
        return dict(found)

    def rule(self, *, draft: str, k: int, block: int) -> None:
        """Put a policy with these blocks in force."""
        before = self.rest.get("/admin/v1/policy")["revision"]
        self.policy.write_text(POLICY.format(draft=draft, k=k, block=block))
        while self.rest.get("/admin/v1/policy")["revision"] == before:
            time.sleep(0.2)


def _drawing(seed: int) -> Random:
    return Random(COIN + seed)  # noqa: S311 - resampling and coins, not a secret


def _together(clients: int, seconds: float, client: Callable[[Random, float], None]) -> None:
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=client, args=(_drawing(seed), until)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--draft", default="draft_model")
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24, help="of an answer, at most")
    parser.add_argument("--blocks", type=int, default=14)
    parser.add_argument("--block", type=int, default=6, help="seconds, for each concurrent client")
    asked = parser.parse_args()

    with TemporaryDirectory() as folder, ExitStack() as open_ones:
        policy = Path(folder, "policy.yaml")
        policy.write_text("version: 1\n")
        stack = open_ones.enter_context(
            open_stack(folder=Path(folder), policy=policy, dtype="bfloat16", ports=free_ports(), say=say)
        )
        rest = open_ones.enter_context(GatewayClient(stack.urls.gateway, stack.admin_token))
        backend = register_backend(rest, stack.urls.backend)
        bench = Bench(
            rest=rest,
            stack=stack,
            model=backend["models"][0],
            keys={
                name: rest.post("/admin/v1/keys", {"name": name, "tenant": name})["key"] for name in TENANTS
            },
            prompts=[prompt for prompt in load_prompts() if prompt.workload == WORKLOAD],
            max_tokens=asked.tokens,
            policy=policy,
        )
        say(f"{WORKLOAD}, {asked.draft}, K={asked.k}, answers of at most {asked.tokens} tokens")
        for concurrency in asked.concurrency:
            block = asked.block * concurrency
            bench.rule(draft=asked.draft, k=asked.k, block=block)
            if concurrency == 1:
                bench.paired(rounds=1)  # prompts are computed once, and then kept
                say(f"1 clients, paired          {bench.paired(rounds=4)}")
            coins = bench.request_level(concurrency, block * asked.blocks / 2)
            say(f"{concurrency} clients, request-level   {coins}")
            found = bench.switchback(concurrency, block, asked.blocks)
            say(f"{concurrency} clients, switchback      {_in_words(found)}")


def _key(rest: GatewayClient, tenant: str) -> str:
    return str(rest.post("/admin/v1/keys", {"name": tenant, "tenant": tenant})["key"])


def _in_words(found: dict[str, Any]) -> str:
    if found["value"] is None:
        return f"nothing: {found['reason']}"
    rates = found["engine_tokens_per_second"]
    engine = {arm: "unknown" if rate is None else f"{rate:.1f}" for arm, rate in rates.items()}
    return (
        f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f}, "
        f"{found['blocks_spec']} and {found['blocks_control']} blocks of {found['n_spec']} and "
        f"{found['n_control']} requests); first byte {found['ttft_ratio']:.2f}, whole answer "
        f"{found['e2e_ratio']:.2f}; the engine as a whole {engine['spec']} tok/s, plain {engine['control']}"
    )


if __name__ == "__main__":
    main()
