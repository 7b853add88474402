"""nanostories/pages/answers.py: probe.html."""

import re

import pytest

from nanostories.pages.answers import answers_page

HOSTILE = "<script>document.title = 1</script><b>"


def row(verdict: str, lead: str, prompt: str = "The sky is", name: str = "facts") -> dict:
    cells = {"set": name, "prompt": prompt, "right": " blue", "wrong": " red | green"}
    model = {"verdict": verdict, "lead": lead, "greedy": " blue.", "rank": "1", "p": "0.0123"}
    cells |= {f"a {column}": cell for column, cell in model.items()}
    return cells | {"b verdict": "", "b lead": "", "b greedy": HOSTILE}


@pytest.mark.parametrize(
    "verdict, lead, expected",
    [
        ("right", "0.5", "✓ 1 of 3, p 0.012, lead +0.50"),
        ("nearly", "-0.05", "≈ 1 of 3, p 0.012, lead -0.05"),
        ("", "", ""),
    ],
)
def test_a_cell_has_its_verdict_and_lead(verdict, lead, expected):
    html = answers_page([row(verdict, lead)]).decode()
    cells = re.findall("<td>(.*?)</td>", html)
    assert cells[2:6] == [" red | green", expected, "blue.", ""]


def test_a_browser_shows_it_and_runs_nothing_of_it(chromium, tmp_path):
    rows = [row("right", "1", HOSTILE, HOSTILE), row("wrong", "-1", "long" * 100)]
    (tmp_path / "probe.html").write_bytes(answers_page(rows, HOSTILE))
    chromium.open(tmp_path / "probe.html", width=360)
    chromium.check_screen()
    assert chromium.run("document.title") == "Answers to prompts"
    assert chromium.run("document.querySelector('.warning').textContent") == HOSTILE
