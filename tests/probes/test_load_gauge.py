from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.load_gauge import LOAD_GAUGE, EngineLoad, read_load
from probes.model import Support
from tests.fakes.openai_server import OpenAIServer
from tests.probes.test_sampling import assert_found

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b} c"} 3.0
vllm:num_requests_running{engine="1",model_name="a b} c"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a"} 9.0
vllm:generation_tokens_total{engine="0",model_name="a"} 1.234e+06
vllm:generation_tokens_created{engine="0",model_name="a"} 1.7e+09
"""


def test_the_series_of_all_engines_are_added_up() -> None:
    assert read_load(VLLM) == EngineLoad(running=5.0, generated=1_234_000.0)


@pytest.mark.parametrize(
    ("page", "running", "generated"),
    [
        (b'sglang:num_running_reqs{tp_rank="0"} 4\nsglang:generation_tokens_total{} 7', 4.0, 7.0),
        (b"llamacpp:requests_processing 1\r\nllamacpp:tokens_predicted_total 12\r\n", 1.0, 12.0),
        (b"ace_embedded_requests_running 0.0 1700000000\n", 0.0, None),
        (b"vllm:num_requests_running NaN\n", None, None),
        (b"vllm:num_requests_running_max 4\n", None, None),
        (b'[{"iter": 1, "numActiveRequests": 3}]', None, None),
        (b"", None, None),
    ],
)
def test_other_engines_and_pages(page: bytes, running: float | None, generated: float | None) -> None:
    assert read_load(page) == EngineLoad(running=running, generated=generated)


@given(st.binary(max_size=300))
def test_whatever_a_page_holds_it_is_read_without_failing(page: bytes) -> None:
    read_load(b"vllm:num_requests_running" + page)


async def test_a_server_with_the_gauge_has_it() -> None:
    await assert_found(LOAD_GAUGE, OpenAIServer(running=2), Support.YES, "says 2 running, 0 tokens made")


async def test_a_server_without_metrics_does_not() -> None:
    await assert_found(LOAD_GAUGE, OpenAIServer().without("load_gauge"), Support.NO, "HTTP 404")


async def test_metrics_without_the_gauge_say_no_and_which_names_were_looked_for() -> None:
    server = OpenAIServer(answers={"/metrics": (200, "[]")})
    await assert_found(LOAD_GAUGE, server, Support.NO, "sglang:num_running_reqs")


async def test_metrics_that_fail_say_nothing() -> None:
    server = OpenAIServer(answers={"/metrics": (503, "{}")})
    await assert_found(LOAD_GAUGE, server, Support.UNKNOWN, "HTTP 503")
