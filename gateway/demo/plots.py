"""Plots as SVG for an HTML page: as wide as their place, in its font and colours, and said in words too."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Colour:
    """One colour as a light page shows it, and as a dark one does."""

    light: str
    dark: str


COLOURS: Mapping[str, Colour] = {
    "ink": Colour("#1f2733", "#e6e9ef"),
    "muted": Colour("#5b6675", "#a3aebc"),
    "line": Colour("#dde2e8", "#39424e"),
    "grey": Colour("#6b7280", "#a9b1bd"),
    "blue": Colour("#1d6fd1", "#6cb0ff"),
    "orange": Colour("#c2570c", "#ff9e5a"),
    "violet": Colour("#7c3aed", "#bda3ff"),
    "green": Colour("#0f8a5f", "#4fcb9d"),
    "pink": Colour("#b83280", "#f38cc6"),
}
"""In a plot each stands as the CSS variable of its name, which the page sets to one or the other."""

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_FONT = re.compile(r"font-family: [^;]*;? ?")
_REFERENCE = re.compile(r"#([^)\"']+)")
_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": COLOURS["line"].light,
    "axes.grid": True,
    "axes.labelcolor": COLOURS["muted"].light,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.color": COLOURS["line"].light,
    "grid.linewidth": 0.7,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "text.color": COLOURS["ink"].light,
    "text.parse_math": False,
    "xtick.color": COLOURS["line"].light,
    "xtick.labelcolor": COLOURS["ink"].light,
    "ytick.color": COLOURS["line"].light,
    "ytick.labelcolor": COLOURS["ink"].light,
}
_POINTS_PER_INCH = 72


@dataclass(frozen=True, slots=True)
class Series:
    """What is told apart by colour and by shape too.

    Attributes:
        colour: A name in COLOURS.
        marker: matplotlib's letter for the shape.
        solid: Whether it was measured: a filled marker and a solid line, else hollow and dashed.
    """

    name: str
    colour: str
    marker: str
    solid: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A value, its 95 % interval where it has one, and a short label to stand beside it."""

    value: float
    low: float | None = None
    high: float | None = None
    label: str = ""

    @property
    def reach(self) -> tuple[list[float], list[float]] | None:
        """How far its interval reaches below and above the value, as matplotlib takes it."""
        if self.low is None or self.high is None:
            return None
        return [self.value - self.low], [self.high - self.value]


def dot_plot(
    rows: Mapping[str, Mapping[Series, Point]],
    *,
    name: str,
    alt: str,
    x_label: str,
    even_at: float | None = None,
    x_max: float | None = None,
) -> str:
    """A row of dots with intervals for each name, from zero rightwards.

    Args:
        rows: Row name to its points.
        name: Unique on the page, for the ids inside.
        alt: Says what the picture shows.
        x_label: What is measured.
        even_at: Where a line says "neither gain nor loss".
        x_max: Right end of the axis; what the points need if None.
    """
    series = list(dict.fromkeys(one for points in rows.values() for one in points))
    with mpl.rc_context(_STYLE):
        figure, axes = _canvas(width=360, height=46 + 15 * len(rows) * (len(series) + 0.8))
        for row, points in enumerate(rows.values()):
            for one, point in points.items():
                _draw_dot(axes, row + (series.index(one) + 0.5) / len(series) * 0.8 - 0.4, one, point)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.set_ylim(len(rows) - 0.45, -0.55)
        right = x_max or axes.get_xlim()[1] * 1.15
        # Room at both ends, where a marker would be cut.
        axes.set_xlim(-0.03 * right, 1.03 * right)
        axes.set_xlabel(x_label)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        if even_at is not None:
            axes.axvline(even_at, color=COLOURS["muted"].light, linewidth=1)
        return _svg_of(figure, name=name, alt=alt)


def line_plot(
    lines: Mapping[Series, Mapping[int, Point]],
    *,
    name: str,
    alt: str,
    x_label: str,
    xs: Sequence[int],
    y_max: float,
    even_at: float | None = None,
) -> str:
    """Lines over whole numbers, from zero upwards; points with an interval show it.

    Args:
        lines: Each line's points by x.
        name: Unique on the page, for the ids inside.
        alt: Says what the picture shows.
        x_label: What the whole numbers are.
        xs: The whole numbers.
        y_max: Upper end of the axis, so that plots side by side can share it.
        even_at: Where a line says "neither gain nor loss".
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _canvas(width=250, height=165)
        if even_at is not None:
            axes.axhline(even_at, color=COLOURS["muted"].light, linewidth=1)
        for one, points in lines.items():
            _draw_line(axes, one, points)
        axes.set_xticks(list(xs))
        axes.set_xlim(min(xs) - 0.4, max(xs) + 0.4)
        axes.set_ylim(-0.04 * y_max, y_max)
        axes.set_xlabel(x_label)
        axes.grid(visible=False, axis="x")
        return _svg_of(figure, name=name, alt=alt)


def _canvas(*, width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH), layout="constrained")
    return figure, figure.add_subplot()


def _draw_dot(axes: Axes, y: float, series: Series, point: Point) -> None:
    axes.errorbar([point.value], [y], xerr=point.reach, **_look(series))
    axes.annotate(
        point.label,
        (point.value if point.high is None else point.high, y),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=10,
        color=COLOURS[series.colour].light,
    )


def _draw_line(axes: Axes, series: Series, points: Mapping[int, Point]) -> None:
    xs, ys = list(points), [point.value for point in points.values()]
    axes.plot(
        xs, ys, color=COLOURS[series.colour].light, linewidth=1.4, linestyle="-" if series.solid else "--"
    )
    for x, point in points.items():
        axes.errorbar([x], [point.value], yerr=point.reach, **_look(series))


def _look(series: Series) -> dict[str, Any]:
    colour = COLOURS[series.colour].light
    return {
        "color": colour,
        "marker": series.marker,
        # A hollow marker stays visible around a filled one at the same place.
        "markersize": 5.5 if series.solid else 8,
        "markerfacecolor": colour if series.solid else "none",
        "elinewidth": 1.4,
        "capsize": 2.5,
    }


def _svg_of(figure: Figure, *, name: str, alt: str) -> str:
    drawn = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return _for_a_page(drawn.getvalue(), name=name, alt=alt)


def _for_a_page(svg: str, *, name: str, alt: str) -> str:
    """The drawing as one of several on a page: as wide as its place, themed, and with ids of its own."""
    root = ET.fromstring(svg)  # noqa: S314 matplotlib wrote it a moment ago
    for element in list(root):
        if element.tag == f"{_SVG}metadata" or element.find(f"{_SVG}style") is not None:
            root.remove(element)
    del root.attrib["width"], root.attrib["height"]
    root.attrib |= {"role": "img", "aria-label": alt}
    referenced = {found for element in root.iter() for found in _references(element)}
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.attrib = _attributes(element.attrib, referenced, name)
    return ET.tostring(root, encoding="unicode")


def _references(element: ET.Element) -> list[str]:
    return [
        found
        for attribute in (_HREF, "clip-path")
        for found in _REFERENCE.findall(element.get(attribute, ""))
    ]


def _attributes(attributes: Mapping[str, str], referenced: set[str], name: str) -> dict[str, str]:
    """Ids that nothing refers to are left out; the others, and what refers to them, start with `name`."""
    kept = {key: value for key, value in attributes.items() if key != "id" or value in referenced}
    return {"href" if key == _HREF else key: _value(key, value, name) for key, value in kept.items()}


def _value(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key in (_HREF, "clip-path"):
        return value.replace("#", f"#{name}-")
    if key == "style":
        value = _FONT.sub("", value)
        for colour, shades in COLOURS.items():
            value = value.replace(shades.light, f"var(--{colour})")
    return value
