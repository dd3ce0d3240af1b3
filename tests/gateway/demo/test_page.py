import re
from collections.abc import Sequence
from html.parser import HTMLParser
from random import Random

import pytest

from gateway.demo.measure import Trial, Way
from gateway.demo.page import page_of
from gateway.demo.report import Report
from gateway.demo.results import make_report
from gateway.demo.sentences import sentences
from tests.fakes.trials import evidence, replay, replayed, stage, stages_of, trial, without_loop

WORKLOADS = ("code", "rag", "summarise", "chat", "creative")
MACHINE = {
    "cpu": "Abacus <3>",
    "k": 5,
    "date": "2026-11-30",
    "pass_seconds": {"ngram": {"1": 0.07, "6": 0.09}, "suffix": {"1": 0.07}},
}


class Page(HTMLParser):
    """The parts of a page: table rows as lists of cells, text, every address, every plot's words."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.text = ""
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.alts: list[str] = []
        self._in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href")]
        self.alts += [value or "" for name, value in attributes if name == "aria-label"]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_cell:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False


def trials_of(workload: str) -> list[Trial]:
    others = {Way.K1: 1.6, Way.K3: 0.8, Way.K8: 1.0}
    return [trial(workload, str(n), other_seconds=others if n < 3 else None) for n in range(6)]


def report_of(trials: Sequence[Trial], **changes: object) -> Report:
    return make_report(evidence(trials, **changes), MACHINE, Random(1))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def report() -> Report:
    trials = [one for workload in WORKLOADS for one in trials_of(workload)]
    stages = stages_of(trials) | {
        one.shadow.request_id: replayed(compared={"suffix": replay(accepted_tokens=12)}) for one in trials
    }
    return report_of(trials, stages=stages | {"prod-chat-0": stage("bypass", reason="no_executor")})


@pytest.fixture(scope="module")
def html(report: Report) -> str:
    return page_of(report, command="ace demo --html FILE")


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_needs_nothing_else(page: Page) -> None:
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert all(address.startswith("#") for address in page.addresses)


def test_the_page_has_every_sentence(report: Report, page: Page) -> None:
    *said, _machine = sentences(report)

    assert [sentence for sentence in said if sentence not in page.text] == []


def test_speeds_and_multipliers_stand_as_numbers_too(page: Page) -> None:
    assert ["code", "off", "6 of 6", "20.0 (20.0 to 20.0)", "", ""] in page.rows
    in_engine = ["40.0 (40.0 to 40.0)", "2.00 (2.00 to 2.00)", "100%"]
    assert ["code", "prod, in_engine", "6 of 6", *in_engine] in page.rows
    assert ["chat", "prod, in_engine", "5 of 6", *in_engine] in page.rows
    loop = ["32.0 (32.0 to 32.0)", "1.60 (1.60 to 1.60)", "100%"]
    assert ["code", "prod, gateway_loop", "6 of 6", *loop] in page.rows


def test_acceptance_by_position_stands_as_numbers_too(page: Page) -> None:
    rates = ["1.00", "1.00", "0.75", "0.75", "0.50", "0.80"]

    assert ["rag", "would-be, from shadow", *rates] in page.rows
    assert ["rag", "prod, in_engine", *rates] in page.rows


def test_the_measured_k_curve_shows_its_sample_sizes(page: Page) -> None:
    (row, *_) = [row for row in page.rows if row[:2] == ["code", "measured"]]

    assert row[2:] == ["1.25 (n=3)", "", "2.50 (n=3)", "", "2.00 (n=6)", "", "", "2.00 (n=3)"]


def test_drafters_stand_side_by_side(page: Page) -> None:
    assert ["chat", "ngram", "6", "0.80", "1.98", "2.00 (K=1)", "-"] in page.rows
    assert ["chat", "suffix", "6", "0.60", "1.98", "2.00 (K=1)", "-"] in page.rows


def test_every_plot_is_said_in_words(page: Page) -> None:
    assert len(page.alts) == 1 + len(WORKLOADS) + len(WORKLOADS) + 2
    assert any("code: off 20.00, prod, in_engine 40.00" in alt for alt in page.alts)


def test_where_and_how_it_was_made_is_shown_as_text(page: Page) -> None:
    assert "ace demo --html FILE" in page.text
    assert ["cpu", "Abacus <3>"] in page.rows
    assert ["ms of a pass", "1 tokens", "6 tokens"] in page.rows
    assert ["ngram", "70.0", "90.0"] in page.rows
    assert ["suffix", "70.0", "-"] in page.rows


def test_ids_are_unique_on_the_page(html: str) -> None:
    ids = re.findall(r' id="([^"]+)"', html)

    assert len(ids) == len(set(ids))


def test_every_colour_has_a_light_and_a_dark_shade(html: str) -> None:
    light, _, dark = html.partition("prefers-color-scheme: dark")

    for colour in set(re.findall(r"var\(--(\w+)\)", html)):
        assert f"--{colour}:" in light
        assert f"--{colour}:" in dark


def test_a_demo_in_which_nothing_could_be_measured_still_makes_a_page() -> None:
    page = Page(page_of(report_of([trial()], stages={}, pass_seconds={}), command="ace demo"))

    assert ["code", "off", "1 of 1", "20.0 (20.0 to 20.0)", "", ""] in page.rows
    assert ["code", "prod, in_engine", "0 of 1", "-", "-", "100%"] in page.rows
    assert "1 of 1 shadow answers were not replayed (no record 1)" in page.text


def test_a_single_drafter_is_not_compared_with_itself() -> None:
    page = Page(page_of(report_of(trials_of("code")), command="ace demo"))

    assert "Drafters side by side" not in page.text


def test_a_demo_without_the_loop_shows_no_empty_rows_of_it() -> None:
    trials = [without_loop(one) for one in trials_of("code")]
    page = Page(page_of(report_of(trials), command="ace demo"))

    assert not [row for row in page.rows if "prod, gateway_loop" in row]
    assert "a quick demo leaves it out" in page.text
