"""nanostories/pages/markdown.py: the subset that commands write, and that nothing else becomes
markup."""

import random
from html.parser import HTMLParser

import pytest
from nanostories.pages.markdown import to_html

from nanostories.tables import table_text

ALLOWED = set("h1 h2 h3 h4 h5 h6 p code a ul li div table thead tbody tr th td".split())


class Reader(HTMLParser):
    """tags: those that were opened; text: all that is shown; cells: of tables, row by row."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.text, self.cells, self.links = [], "", [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name == "href"]
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_data(self, data):
        self.text += data
        if self.cells and self.cells[-1]:
            self.cells[-1][-1] += data.strip("\n")


def test_a_table_comes_back():
    head, rows = ["run", "loss", "note"], [["a", "1.50", ""], ["<b>", "0.31 [0.2, 0.4]", "x & y"]]
    html = to_html(table_text(head, rows))
    assert (
        Reader(html).cells == [head, *rows] and html.count('class="number"') == 3
    )  # a column of three rows


@pytest.mark.parametrize(
    "text, tags",
    [
        ("## Scores", ["h3"]),
        ("one\ntwo\n\nthree", ["p", "p"]),
        ("WARNING: few\nWARNING: blind", ["p", "p"]),
        ("- a\n- b", ["ul", "li", "li"]),
        ("run `python a.py`", ["p", "code"]),
        ("[demo](demo/story.html)", ["p", "a"]),
        ("[x](javascript:alert(1)) [x](//evil.org) [x](JAVASCRIPT:1)", ["p"]),
        ("| a | b |\nno table", ["div", "table", "thead", "tr", "th", "th", "tbody", "p"]),
        ("", []),
    ],
)
def test_blocks(text, tags):
    assert Reader(to_html(text)).tags == tags


def test_whatever_a_file_contains_stays_text():
    rng = random.Random(0)
    pieces = ["\n", " ", *'<script> </p> ` | # [a](b) - WARNING " &amp; --- <!-- ]( é'.split(" ")]
    for _ in range(500):
        text = "".join(rng.choices(pieces, k=12))
        found = Reader(to_html(text))
        assert set(found.tags) <= ALLOWED and set(found.links) <= {"b"}, text
        assert found.text.count("<script>") == text.count("<script>") or "|" in text, (
            text
        )  # a table may drop cells
