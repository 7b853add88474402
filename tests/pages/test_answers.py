"""nanostories/pages/answers.py: probe.html."""

import re

import pytest

from nanostories.pages.answers import answers_page

HOSTILE = "<script>document.title = 1</script><b>"


def row(verdict: str, prompt: str = "The sky is", name: str = "facts") -> dict:
    lead = {"right": "0.5", "nearly": "-0.05", "wrong": "-1.25"}.get(verdict, "")
    cells = {
        "a verdict": verdict,
        "a lead": lead,
        "a greedy": " blue.",
        "b verdict": "wrong",
        "b lead": "-2",
    }
    cells |= {"a rank": "1", "a p": "0.0123", "b rank": "3", "b p": "1e-9"}
    return (
        dict(set=name, prompt=prompt, right=" blue", wrong=" red | green")
        | cells
        | {"b greedy": HOSTILE}
    )


def test_each_cell_has_its_verdict_and_lead():
    html = answers_page(
        [row("right"), row("right"), row("nearly"), row("wrong"), row("", name="mine.txt")]
    ).decode()
    rows = re.findall("<tr>(.*?)</tr>", html)
    cells = [re.findall("<td>(.*?)</td>", line)[3:5] for line in rows if "<td>" in line]
    leads = [("✓", "+0.50"), ("✓", "+0.50"), ("≈", "-0.05"), ("✗", "-1.25")]
    expected = [[f"{mark} 1 of 3, p 0.012, lead {lead}", "blue."] for mark, lead in leads]
    assert cells == [*expected, ["", "blue."]]
    assert "<td> red, green</td>" in html


@pytest.mark.parametrize("width", [360, 1400])
def test_a_browser_shows_it_and_runs_nothing_of_it(chromium, tmp_path, width):
    rows = [row("right", HOSTILE, HOSTILE), row("wrong", "long" * 100)]
    (tmp_path / "probe.html").write_bytes(answers_page(rows, HOSTILE))
    chromium.open(tmp_path / "probe.html", width, 800, dark=width == 360)
    assert chromium.run("document.documentElement.scrollWidth") <= width and chromium.messages == []
    assert chromium.run("document.title") == "Answers to prompts"
    assert chromium.run("document.querySelectorAll('script:not([type])').length") <= 2
    assert chromium.run("document.querySelector('.warning').textContent") == HOSTILE
