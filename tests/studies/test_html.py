"""The report as a page: read with a parser, not with the eye."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

from ddrl.studies.html import render
from ddrl.studies.statistics import Interval
from ddrl.studies.tables import Table

VOID = {"meta", "link", "img", "br"}
PNG = b"\x89PNG\r\n\x1a\n-not-an-image-"
REPORT = dict(
    title="Scaling <of> a & b",
    finding="The score ranges from 1 to 2.",
    summary=("2 of 2 points have finished.",),
    command='ddrl study scaling --train-options="--game <x>"',
    figures=(
        {
            "pictures": [
                {"png": PNG, "description": "updates/s over workers"},
                {"png": PNG + b"2", "description": 'a "quoted" one'},
            ],
            "caption": "By workers.",
        },
    ),
    tables=(
        Table(
            "Rates",
            ("workers", "updates/s", "why"),
            ((1, Interval(1234.0, 1200.0, 1300.0, 3), "compute"), (2, None, "<b>")),
        ),
    ),
    protocol={"game": "breakout"},
    hardware={"processor": "Some Processor", "cores": "2"},
    versions={"ddrl": "0.1.0"},
    notes=("points/a & b failed: out of memory",),
    files=("results.json", "table.csv"),
    date="today",
)


class Page(HTMLParser):
    """Tags with their attributes, text, and whether all elements are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def having(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def test_all_elements_are_closed_and_all_content_is_there():
    page = Page(render(**REPORT))
    assert page.open == []
    text = " ".join(page.text)
    for expected in (
        REPORT["title"],
        REPORT["finding"],
        *REPORT["summary"],
        REPORT["command"],
        "By workers.",
        "Rates",
        "1,234 [1,200, 1,300]",
        "<b>",
        "breakout",
        "Some Processor",
        "0.1.0",
        *REPORT["notes"],
        "results.json",
    ):
        assert expected in text
    assert page.having("title") and len(page.having("h1")) == 1


def test_every_figure_is_in_the_page_with_words_for_it():
    images = Page(render(**REPORT)).having("img")
    found = [base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) for image in images]
    pictures = [picture for figure in REPORT["figures"] for picture in figure["pictures"]]
    assert found == [picture["png"] for picture in pictures]
    assert [image["alt"] for image in images] == [picture["description"] for picture in pictures]


def test_nothing_is_fetched_and_nothing_runs():
    text = render(**REPORT)
    page = Page(text)
    assert not {"script", "iframe", "object", "embed", "form", "a"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, name)
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    (policy,) = [m["content"] for m in page.having("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy


def test_numbers_are_set_to_the_right_and_words_are_not():
    cells = Page(render(**REPORT)).having("td")
    assert [cell.get("class") for cell in cells[:6]] == ["number", "number", None, "number", "number", None]


def test_a_report_of_nothing_is_a_page_too():
    nothing = dict.fromkeys(REPORT, ()) | {"protocol": {}, "hardware": {}, "versions": {}}
    page = Page(render(**nothing | {"title": "empty", "tables": (Table("none", ("a",), ()),)}))
    assert page.open == [] and page.having("table") and not page.having("img")


def test_a_report_is_a_function_of_its_content():
    assert render(**REPORT) == render(**REPORT)
