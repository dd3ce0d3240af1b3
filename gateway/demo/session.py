"""What a demo does with a running stack: calibrate, measure, and gather the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx
from click import ClickException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.cli.client import CALIBRATION_LIMIT_S, GatewayClient
from gateway.demo.calibrate import REQUESTS_PER_ROUND, Calibration, Costs, loop_costs
from gateway.demo.client import Answer, ChatClient
from gateway.demo.failure import DemoFailed
from gateway.demo.measure import Trial, Way, measure, ways_to_ask, with_ids
from gateway.demo.pace import Pace
from gateway.demo.prompts import Prompt, calibration_prompt
from gateway.demo.records import Stage, collect
from gateway.demo.render import show_backend
from gateway.demo.results import Evidence
from gateway.demo.setup import BACKEND_NAME, register_backend, runner_joined
from gateway.demo.stack import Stack
from gateway.demo.ties import undecided
from gateway.evidence.loop_costs import load_band
from gateway.fleet.engine_watch import INTERVAL_S
from gateway.policy.model import DRAFTERS

_RECORDS_WITHIN_S = 20.0
_BACKEND_TIMEOUT_S = 120.0
_SEEN_WITHIN_S = INTERVAL_S + 0.5
"""By then the gateway has read the engine's load anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The clients of one demo.

    Attributes:
        chats: The gateway, asked as the tenant of each way.
        direct: The backend itself, asked for calibration.
        backend: The backend's other routes.
        rest: The gateway's REST API.
    """

    chats: Mapping[Way, ChatClient]
    direct: ChatClient
    backend: httpx.Client
    rest: GatewayClient
    model: str
    console: Console

    def gather(self, prompts: Sequence[Prompt], *, pace: Pace, drafter: str, k: int, exact: bool) -> Evidence:
        """Ask everything and fetch what it left behind.

        Args:
            prompts: What is asked.
            pace: How much may be asked.
            drafter: What prod drafts with, as the policy says.
            k: Draft tokens per step there.
            exact: Whether the backend computes in float32.
        """
        if Way.LOOP in pace.ways:
            self._calibrate_loop()
        ways = ways_to_ask(prompts, pace.ways, pace.curve_prompts)
        asked = [way for prompt in prompts for way in ways[prompt]]
        with self._progress() as progress:
            calibration = self._calibration(progress, pace)
            calibration.warm_up()
            calibration.add_round()
            max_tokens = pace.answer_tokens(asked, calibration.costs(drafter).pass_seconds[1])
            ask = self._asking(progress, max_tokens, len(asked))
            trials: list[Trial] = []
            for number, block in enumerate(_blocks(prompts, pace.calibration_rounds)):
                if number:
                    calibration.add_round()
                # The gateway has to see that the calls made past it have ended, or it takes them for load.
                time.sleep(_SEEN_WITHIN_S)
                asked_of_block = measure(block, ask, ways=ways.__getitem__, first=len(trials))
                trials += [with_ids(trial, self._tokenize) for trial in asked_of_block]
        return Evidence(
            trials=trials,
            stages=self._stages(trials),
            undecided=undecided(trials, model=self.model, complete=self._complete),
            costs={
                "in_engine": {name: calibration.costs(name) for name in DRAFTERS},
                "gateway_loop": self._loop_costs(),
            },
            max_tokens=max_tokens,
            drafter=drafter,
            k=k,
            exact=exact,
        )

    def _calibration(self, progress: Progress, pace: Pace) -> Calibration:
        prompt = calibration_prompt()
        requests = 1 + pace.calibration_rounds * REQUESTS_PER_ROUND
        task = progress.add_task("pass times", total=requests)

        def ask(arguments: dict[str, object]) -> None:
            self.direct.ask(
                prompt.text,
                request_id="demo-calibration",
                workload=prompt.workload,
                max_tokens=pace.calibration_tokens,
                extra_body={"vllm_xargs": arguments},
            )
            progress.advance(task)

        return Calibration(read_metrics=lambda: self._fetch("/metrics").text, ask=ask)

    def _asking(self, progress: Progress, max_tokens: int, total: int) -> Callable[[Way, Prompt], Answer]:
        task = progress.add_task("off, shadow and prod", total=total)

        def ask(way: Way, prompt: Prompt) -> Answer:
            progress.update(task, description=f"{prompt.workload}: {prompt.name} ({way})")
            answer = self.chats[way].ask(
                prompt.text,
                request_id=f"demo-{way}-{prompt.workload}-{prompt.name}",
                workload=prompt.workload,
                max_tokens=max_tokens,
                # Of a request that asks for more than OpenAI's fields, the loop keeps its hands off.
                plain_fields=way is Way.LOOP,
            )
            progress.advance(task)
            return answer

        return ask

    def _stages(self, trials: Sequence[Trial]) -> dict[str, Stage]:
        expected = (
            answer.request_id
            for trial in trials
            for way, answer in trial.answers.items()
            if way is not Way.OFF
        )
        found = collect(
            expected,
            self._find_stage,
            time_limit_s=_RECORDS_WITHIN_S,
            clock=time.monotonic,
            pause=time.sleep,
        )
        # By now a record of an off request, which should not exist, would have been written too.
        unexpected = (trial.off.request_id for trial in trials)
        return found | collect(
            unexpected, self._find_stage, time_limit_s=0, clock=time.monotonic, pause=time.sleep
        )

    def _find_stage(self, request_id: str) -> Mapping[str, Any] | None:
        stages: list[Mapping[str, Any]] = self.rest.get("/admin/v1/stages", request_id=request_id)["stages"]
        return stages[0] if stages else None

    def _tokenize(self, text: str) -> list[int]:
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        ids: list[int] = self._fetch("/tokenize", body).json()["tokens"]
        return ids

    def _calibrate_loop(self) -> None:
        """Have the gateway time its loop; without that it would not drive it."""
        try:
            with self.console.status("timing the gateway's loop"):
                route = f"/admin/v1/backends/{BACKEND_NAME}/calibrate"
                self.rest.post(route, time_limit_s=CALIBRATION_LIMIT_S)
        except ClickException as error:
            self.console.print(f"The gateway's loop was not timed: {error.message}", markup=False)

    def _loop_costs(self) -> dict[str, Costs]:
        """What the gateway has measured of its loop, by drafter, at the demo's load of one request."""
        backend = self.rest.get(f"/admin/v1/backends/{BACKEND_NAME}")
        return {
            found["drafter"]: loop_costs(found)
            for found in backend["calibrations"]
            if found["band"] == load_band(1)
        }

    def _complete(self, body: dict[str, Any]) -> Mapping[str, Any]:
        reply: Mapping[str, Any] = self._fetch("/v1/completions", body).json()
        return reply

    def _fetch(self, path: str, body: object = None) -> httpx.Response:
        try:
            reply = self.backend.post(path, json=body) if body is not None else self.backend.get(path)
            return reply.raise_for_status()
        except httpx.HTTPError as error:
            raise DemoFailed(f"The embedded backend did not answer {path}: {error}") from error

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )


@contextmanager
def open_session(stack: Stack, console: Console) -> Iterator[Session]:
    """Clients of a stack whose backend is registered and whose tenants have keys."""
    with ExitStack() as opened:
        rest = opened.enter_context(GatewayClient(stack.urls.gateway, stack.admin_token))
        backend = register_backend(rest, stack.urls.backend)
        show_backend(console, backend)
        if not runner_joined(rest):
            console.print("No draft runner has joined; shadow answers will be counted as not replayed.")
        model = backend["models"][0]

        def chat(url: str, key: str) -> ChatClient:
            return opened.enter_context(closing(ChatClient(url=url, key=key, model=model)))

        yield Session(
            chats={way: chat(stack.urls.gateway, _new_key(rest, way)) for way in Way},
            direct=chat(stack.urls.backend, "none"),
            backend=opened.enter_context(
                httpx.Client(base_url=stack.urls.backend, timeout=_BACKEND_TIMEOUT_S, trust_env=False)
            ),
            rest=rest,
            model=model,
            console=console,
        )


def _new_key(rest: GatewayClient, way: Way) -> str:
    """An API key of the tenant that the policy has this way's rule for."""
    tenant = f"demo-{way}"
    key: str = rest.post("/admin/v1/keys", {"name": tenant, "tenant": tenant})["key"]
    return key


def _blocks(prompts: Sequence[Prompt], count: int) -> Iterator[Sequence[Prompt]]:
    """The prompts in order, as `count` blocks of nearly equal length."""
    edges = [len(prompts) * edge // count for edge in range(count + 1)]
    return (prompts[start:end] for start, end in pairwise(edges))
