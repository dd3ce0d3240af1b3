import re
from xml.etree import ElementTree as ET

import pytest

from gateway.demo.plots import COLOURS, Point, Series, dot_plot, line_plot

MEASURED = Series("measured", "blue", "s")
PREDICTED = Series("predicted", "violet", "o", solid=False)
ROWS = {
    "code <edit>": {MEASURED: Point(value=3.0, low=2.5, high=3.5, label="3.0x"), PREDICTED: Point(value=2.8)},
    "chat $1$": {MEASURED: Point(value=1.0, low=0.9, high=1.1)},
}
LINES = {
    MEASURED: {1: Point(value=1.2, low=1.1, high=1.3), 5: Point(value=2.0, low=1.5, high=2.5)},
    PREDICTED: {k: Point(value=1.0 + k / 10) for k in range(1, 9)},
}


def dots(name: str = "speed") -> str:
    return dot_plot(ROWS, name=name, alt="Speeds. code: 3.", x_label="tok/s", even_at=1)


def lines(name: str = "curve") -> str:
    return line_plot(LINES, name=name, alt="Curve.", x_label="K", xs=range(1, 9), y_max=3, even_at=1)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("text")]


@pytest.mark.parametrize("svg", [dots(), lines()])
def test_a_plot_fills_its_place_and_brings_nothing_of_its_own(svg: str) -> None:
    root = ET.fromstring(svg)

    assert root.tag == "svg"
    assert {"width", "height"}.isdisjoint(root.attrib)
    assert root.attrib["viewBox"].startswith("0 0 ")
    assert root.attrib["role"] == "img"
    assert not list(root.iter("style"))
    assert "font-family" not in svg
    assert "http" not in svg


def test_a_plot_says_in_words_what_it_shows() -> None:
    assert ET.fromstring(dots()).attrib["aria-label"] == "Speeds. code: 3."


@pytest.mark.parametrize("svg", [dots(), lines()])
def test_every_colour_is_one_that_the_page_sets(svg: str) -> None:
    used = set(re.findall(r"var\(--(\w+)\)", svg))

    assert used >= {"blue", "violet", "ink", "muted", "line"}
    assert used <= COLOURS.keys()
    assert not re.findall(r"#[0-9a-f]{6}\b", svg)


def test_names_and_labels_are_text_and_never_markup_or_mathematics() -> None:
    assert {"code <edit>", "chat $1$", "3.0x", "tok/s"} <= set(texts(dots()))


def test_ids_are_used_and_belong_to_one_plot() -> None:
    for svg, name in ((dots(), "speed"), (lines(), "curve")):
        ids = re.findall(r' id="([^"]+)"', svg)
        references = set(re.findall(r'href="#([^"]+)"', svg)) | set(re.findall(r"url\(#([^)]+)\)", svg))
        assert ids
        assert set(ids) == references
        assert len(ids) == len(set(ids))
        assert all(one.startswith(f"{name}-") for one in ids)


def test_the_same_numbers_make_the_same_picture() -> None:
    assert lines() == lines()


def test_rows_without_a_point_and_lines_without_one_are_drawn_empty() -> None:
    assert "code" in texts(dot_plot({"code": {}}, name="n", alt="a", x_label="x"))
    assert "K" in texts(line_plot({MEASURED: {}}, name="n", alt="a", x_label="K", xs=[1, 2], y_max=1))
