"""What all pages share: contrast, pictures that cannot run scripts."""

import re

import pytest

from nanostories.pages.html import TEMPLATES, image, language_of

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>parent.document.title = 1</script></svg>'


def luminance(color: str) -> float:
    """As WCAG 2 defines it. color: #rrggbb, or "r, g, b" """
    if color.startswith("#"):
        values = bytes.fromhex(color[1:])
    else:
        values = [int(value) for value in color.split(",")]
    total = 0
    for value, weight in zip(values, (0.2126, 0.7152, 0.0722)):
        share = value / 255
        total += weight * (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4)
    return total


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("text", ["ink", "quiet", "hue", "other"])
def test_the_contrast_of_text(theme, text):
    themes = re.findall(r":root \{(.*?)\n *\}", (TEMPLATES / "style.css").read_text(), re.S)
    colors = dict(re.findall(r"--(\w+): ([^;]+);", themes[theme]))
    for ground in ("paper", "card"):
        levels = sorted([luminance(colors[text]), luminance(colors[ground])])
        assert (levels[1] + 0.05) / (levels[0] + 0.05) >= 4.5


def test_a_page_says_its_language_only_if_it_is_known():
    assert language_of(["She was happy and he was not."]) == "en"
    assert language_of(["एक छोटी लड़की थी। उसका नाम मीना था।"]) == ""


def test_scripts_in_a_picture_never_run(chromium, tmp_path):
    name = "<b>name</b>"
    (tmp_path / "a.html").write_text(f"<title>safe</title>{image(SVG, name)}")
    chromium.open(tmp_path / "a.html")
    assert chromium.run("document.title") == "safe"
    assert chromium.run("document.images[0].alt") == name
