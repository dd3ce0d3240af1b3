"""A report as one HTML page that needs nothing else: plots, the same numbers as tables, and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gateway.demo.plots import COLOURS, Point, Series, dot_plot, line_plot
from gateway.demo.report import Drafted, Multiplier, Predicted, Rate, Report, WorkloadResult
from gateway.demo.sentences import (
    absence_sentences,
    checks_sentence,
    drafter_sentences,
    machine_facts,
    verdict_sentences,
)

_ABSENT = "-"
_OFF = Series("off", "grey", "o")
_WOULD_BE = Series("would-be, from shadow", "violet", "o", solid=False)
_PREDICTED = Series("predicted from shadow", "violet", "o", solid=False)
_EXECUTORS = {
    "in_engine": Series("prod, in_engine", "blue", "s"),
    "gateway_loop": Series("prod, gateway_loop", "orange", "^"),
}
_SHAPES = {
    "o": "M13 2.5a3.5 3.5 0 1 0 .01 0z",
    "s": "M9.5 2.5h7v7h-7z",
    "^": "M13 1.5l4.2 8h-8.4z",
    "D": "M13 1.5l4.5 4.5-4.5 4.5-4.5-4.5z",
}
"""The plots' markers, as paths of a legend's 26 by 12 pixels."""

_DRAFTERS = {
    "ngram": Series("ngram", "blue", "s", solid=False),
    "suffix": Series("suffix", "green", "D", solid=False),
    "draft_model": Series("draft_model", "pink", "^", solid=False),
}


@dataclass(frozen=True, slots=True)
class _Plot:
    caption: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class _Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """One subject: what is shown, the key to its shapes, the plots, and their numbers."""

    title: str
    text: str
    legend: Sequence[Series]
    plots: Sequence[_Plot]
    table: _Table


def page_of(report: Report, *, command: str) -> str:
    """The whole page.

    Args:
        report: What a demo found.
        command: What makes such a report again.
    """
    environment = Environment(
        loader=PackageLoader("gateway.demo", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        command=command,
        colours=COLOURS,
        shapes=_SHAPES,
        said=[*verdict_sentences(report), *drafter_sentences(report)],
        sections=list(_sections(report)),
        absences=absence_sentences(report),
        checks=checks_sentence(report),
        machine=_machine(report),
        pass_times=_pass_times(report),
    )


def _sections(report: Report) -> Iterator[_Section]:
    results = list(report.workloads.values())
    yield _speeds(results)
    yield _positions(results, report.machine["k"])
    yield _curves(results)
    if any(len(result.drafters) > 1 for result in results):
        yield _drafters(results)


def _speeds(results: Sequence[WorkloadResult]) -> _Section:
    rows = {result.workload: dict(_speed_points(result)) for result in results}
    return _Section(
        title="Speed by mode",
        text="Tokens after the first, over the time that they took. Bars are 95 % intervals, resampled by "
        "prompt. Beside prod stands its multiplier over the plain answers (off's and shadow's), paired by "
        "prompt. Looping answers are left out.",
        legend=_series_in(rows.values()),
        plots=[_dots("", rows, name="speed", x_label="decode tokens per second")],
        table=_Table(
            ("workload", "mode", "n", "tok/s", "multiplier", "same as off"),
            [row for result in results for row in _speed_rows(result)],
        ),
    )


def _speed_points(result: WorkloadResult) -> Iterator[tuple[Series, Point]]:
    if result.off.value is not None:
        yield _OFF, Point(value=result.off.value, low=result.off.low, high=result.off.high)
    for name, executed in result.executed.items():
        rate, multiplier = executed.tok_s, executed.multiplier.value
        if rate.value is not None:
            label = "" if multiplier is None else f"{multiplier:.2f}x"
            yield _EXECUTORS[name], Point(value=rate.value, low=rate.low, high=rate.high, label=label)


def _speed_rows(result: WorkloadResult) -> Iterator[list[str]]:
    yield [result.workload, _OFF.name, *_sized_rate(result.off, result.prompts), "", ""]
    for name, found in result.executed.items():
        yield [
            *(result.workload, _EXECUTORS[name].name, *_sized_rate(found.tok_s, result.prompts)),
            *(_estimate(found.multiplier, ".2f"), f"{found.identical_share:.0%}"),
        ]


def _sized_rate(rate: Rate, prompts: int) -> tuple[str, str]:
    return f"{rate.n} of {prompts}", _estimate(rate, ".1f")


def _positions(results: Sequence[WorkloadResult], k: int) -> _Section:
    lines = {result.workload: dict(_position_lines(result)) for result in results}
    places = range(1, k + 1)
    rows = [row for result in results for row in _position_rows(result, places)]
    return _Section(
        title="Acceptance by position",
        text="Share of steps that accepted at least so many drafts. Where both lines are one, the replay of "
        "plain answers told what speculating would do.",
        legend=_series_in(lines.values()),
        plots=[
            _lines(name, of, name=f"position-{name}", x_label="drafts accepted", xs=places, y_max=1.08)
            for name, of in lines.items()
        ],
        table=_Table(("workload", "", *map(str, places), "accepted / proposed"), rows),
    )


def _position_lines(result: WorkloadResult) -> Iterator[tuple[Series, Mapping[int, Point]]]:
    yield _WOULD_BE, _by_place(result.would_by_position)
    for name, executed in result.executed.items():
        yield _EXECUTORS[name], _by_place(executed.by_position)


def _by_place(rates: Sequence[float]) -> dict[int, Point]:
    return {place: Point(value=rate) for place, rate in enumerate(rates, 1)}


def _position_rows(result: WorkloadResult, places: Iterable[int]) -> Iterator[list[str]]:
    acceptances = [result.shadow.acceptance, *(found.acceptance for found in result.executed.values())]
    for (series, line), acceptance in zip(_position_lines(result), acceptances, strict=True):
        rates = [_number(line[place].value if place in line else None) for place in places]
        yield [result.workload, series.name, *rates, _number(acceptance)]


def _curves(results: Sequence[WorkloadResult]) -> _Section:
    lines = {result.workload: _curve_lines(result) for result in results}
    ks = list(results[0].shadow.in_engine.by_k)
    points = [point for of in lines.values() for line in of.values() for point in line.values()]
    top = max([1.2, *(1.05 * (point.high or point.value) for point in points)])
    return _Section(
        title="Which K",
        text="Multiplier by the number of drafts in a step: predicted from shadow for every K, and measured "
        "with 95 % intervals. Other K than the usual one are asked of a few prompts only, so look at n.",
        legend=_series_in(lines.values()),
        plots=[
            _lines(
                *(name, of),
                name=f"curve-{name}",
                x_label="K",
                xs=ks,
                y_max=top,
                even_at=1,
            )
            for name, of in lines.items()
        ],
        table=_Table(
            ("workload", "", *(f"K={k}" for k in ks)),
            [row for result in results for row in _curve_rows(result, ks)],
        ),
    )


def _curve_lines(result: WorkloadResult) -> dict[Series, Mapping[int, Point]]:
    predicted = {
        k: Point(value=value) for k, value in result.shadow.in_engine.by_k.items() if value is not None
    }
    measured = {
        k: Point(value=found.value, low=found.low, high=found.high)
        for k, found in result.measured_curve.items()
        if found.value is not None
    }
    return {_PREDICTED: predicted, _EXECUTORS["in_engine"]: measured}


def _curve_rows(result: WorkloadResult, ks: Sequence[int]) -> Iterator[list[str]]:
    yield [result.workload, "predicted", *(_number(result.shadow.in_engine.by_k[k]) for k in ks)]
    yield [result.workload, "measured", *(_sized(result.measured_curve.get(k)) for k in ks)]


def _drafters(results: Sequence[WorkloadResult]) -> _Section:
    acceptance = _by_drafter(results, lambda found: found.acceptance)
    gain = _by_drafter(results, lambda found: found.in_engine.best)
    head = (
        "workload",
        "drafter",
        "answers",
        "accepted / proposed",
        "in_engine, usual K",
        "in_engine, best K",
    )
    return _Section(
        title="Drafters side by side",
        text="All of them replayed on the very same answers. Predicted multipliers hold the time that "
        "drafting takes: inside the engine, and in a draft runner beside it that drives the gateway's loop.",
        legend=_series_in(acceptance.values()),
        plots=[
            _dots("", acceptance, name="acceptance", x_label="accepted / proposed drafts, usual K", x_max=1),
            _dots("", gain, name="gain", x_label="predicted multiplier in_engine, best K", even_at=1),
        ],
        table=_Table(
            (*head, "gateway_loop, best K"),
            [_drafter_row(one, name, found) for one in results for name, found in one.drafters.items()],
        ),
    )


def _by_drafter(
    results: Iterable[WorkloadResult], pick: Callable[[Drafted], float | None]
) -> dict[str, dict[Series, Point]]:
    return {
        result.workload: {
            _DRAFTERS[name]: Point(value=value, label=f"{value:.2f}")
            for name, found in result.drafters.items()
            if (value := pick(found)) is not None
        }
        for result in results
    }


def _drafter_row(result: WorkloadResult, name: str, found: Drafted) -> list[str]:
    in_engine, loop = found.in_engine, found.gateway_loop
    return [
        *(result.workload, name, str(found.answers), _number(found.acceptance)),
        *(_number(in_engine.at_k), _best(in_engine), _best(loop)),
    ]


def _best(predicted: Predicted) -> str:
    if predicted.at_k is None:
        return _ABSENT
    return "no gain" if predicted.best is None else f"{predicted.best:.2f} (K={predicted.best_k})"


def _pass_times(report: Report) -> _Table:
    times: Mapping[str, Mapping[str, float]] = report.machine.get("pass_seconds", {})
    widths = list(dict.fromkeys(width for of in times.values() for width in of))
    return _Table(
        ("ms of a pass", *(f"{width} tokens" for width in widths)),
        [
            [name, *(f"{of[width] * 1000:.1f}" if width in of else _ABSENT for width in widths)]
            for name, of in times.items()
        ],
    )


def _machine(report: Report) -> _Table:
    return _Table((), [[name, str(value)] for name, value in machine_facts(report).items()])


def _dots(
    caption: str, rows: Mapping[str, Mapping[Series, Point]], *, name: str, x_label: str, **axis: float
) -> _Plot:
    alt = _alt(x_label, {row: {one.name: point for one, point in of.items()} for row, of in rows.items()})
    return _Plot(caption, _markup(dot_plot(rows, name=name, alt=alt, x_label=x_label, **axis)))


def _lines(
    caption: str,
    lines: Mapping[Series, Mapping[int, Point]],
    *,
    name: str,
    x_label: str,
    xs: Sequence[int],
    **axis: float,
) -> _Plot:
    named = {one.name: {f"{x_label} {x}": point for x, point in of.items()} for one, of in lines.items()}
    alt = _alt(caption, named)
    return _Plot(caption, _markup(line_plot(lines, name=name, alt=alt, x_label=x_label, xs=xs, **axis)))


def _markup(svg: str) -> Markup:
    return Markup(svg)  # noqa: S704 made here, and what is text in it has been escaped


def _alt(title: str, rows: Mapping[str, Mapping[str, Point]]) -> str:
    """The picture in words, for those who cannot see it."""
    said = (
        f"{row}: {', '.join(f'{name} {point.value:.2f}' for name, point in points.items()) or 'not measured'}"
        for row, points in rows.items()
    )
    return f"{title}. {'. '.join(said)}."


def _series_in(keyed: Iterable[Mapping[Series, Any]]) -> list[Series]:
    return list(dict.fromkeys(series for of in keyed for series in of))


def _estimate(found: Rate | Multiplier, form: str) -> str:
    if found.value is None or found.low is None or found.high is None:
        return _ABSENT
    return f"{found.value:{form}} ({found.low:{form}} to {found.high:{form}})"


def _sized(found: Multiplier | None) -> str:
    return "" if found is None else f"{_number(found.value)} (n={found.n_spec})"


def _number(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.2f}"
