"""nanostories/pages/answers.py: probe.html."""

import re

import pytest

from nanostories.pages.answers import answers_page

HOSTILE = "<script>document.title = 1</script><b>"


def row(verdict: str, prompt: str = "The sky is", name: str = "facts") -> dict:
    lead = {"right": "0.5", "nearly": "-0.05", "wrong": "-1.25", "": ""}[verdict]
    cells = {"set": name, "prompt": prompt, "right": " blue", "wrong": " red | green"}
    models = {
        "a": {"verdict": verdict, "lead": lead, "greedy": " blue.", "rank": "1", "p": "0.0123"},
        "b": {"verdict": "wrong", "lead": "-2", "greedy": HOSTILE, "rank": "3", "p": "1e-9"},
    }
    for model, own in models.items():
        cells |= {f"{model} {column}": cell for column, cell in own.items()}
    return cells


def test_each_cell_has_its_verdict_and_lead():
    verdicts = {"right": "✓", "nearly": "≈", "wrong": "✗"}
    rows = [row(verdict) for verdict in verdicts] + [row("")]
    html = answers_page(rows).decode()
    expected = [(verdict, f"{mark} 1 of 3, p 0.012") for verdict, mark in verdicts.items()]
    found = re.findall(r'<td class="(\w*)" data-model="a"><b>(.*?)</b>', html)
    assert found == [*expected, ("", "")]
    assert "lead -1.25; “blue.”" in html and "not red, green" in html
    assert "1 of 3 right" in html and "0 of 4 right" in html


@pytest.mark.parametrize("width", [360, 1400])
def test_a_browser_shows_it_and_runs_nothing_of_it(chromium, tmp_path, width):
    rows = [row("right", HOSTILE, HOSTILE), row("wrong", "long" * 100)]
    (tmp_path / "probe.html").write_bytes(answers_page(rows, HOSTILE))
    chromium.open(tmp_path / "probe.html", width, 800, dark=width == 360)
    chromium.check_screen()
    assert chromium.run("document.title") == "Answers to prompts"
    assert chromium.run("document.querySelectorAll('script:not([type])').length") <= 2
    assert chromium.run("document.querySelector('.warning').textContent") == HOSTILE
    color = "getComputedStyle(document.querySelector('td.%s')).backgroundColor"
    assert chromium.run(color % "right") != chromium.run(color % "wrong")
