"""What all pages share: contrast, pictures that cannot run scripts."""

import itertools
import re

import pytest

from nanostories.cli import UserError
from nanostories.pages.html import TEMPLATES, image, language_of

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>parent.document.title = 1</script></svg>'


def luminance(color: tuple[int, ...]) -> float:
    """As WCAG 2 defines it."""
    channels = []
    for value in color:
        share = value / 255
        channels.append(share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4)
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def test_the_contrast_of_all_colors_of_text():
    light, dark = re.findall(r":root \{(.*?)\n *\}", (TEMPLATES / "style.css").read_text(), re.S)
    for theme in (light, dark):
        colors = {}
        for name, value in re.findall(r"--(\w+): ([^;]+);", theme):
            if value.startswith("#"):
                colors[name] = tuple(bytes.fromhex(value[1:]))
            else:
                colors[name] = tuple(map(int, value.split(",")))
        pairs = list(itertools.product(("ink", "quiet", "hue", "other"), ("paper", "card")))
        for text, ground in [*pairs, ("paper", "hue")]:
            levels = sorted([luminance(colors[text]), luminance(colors[ground])])
            assert (levels[1] + 0.05) / (levels[0] + 0.05) >= 4.5, (text, ground)


def test_a_page_says_its_language_only_if_it_is_known():
    assert language_of(["She was happy and he was not."]) == "en"
    assert language_of(["एक छोटी लड़की थी। उसका नाम मीना था।"]) == ""


def test_a_damaged_picture_is_refused():
    with pytest.raises(UserError, match="SVG"):
        image(SVG[:-9], "")


def test_scripts_in_a_picture_never_run(chromium, tmp_path):
    name = "<b>name</b>"
    (tmp_path / "a.html").write_text(f"<title>safe</title>{image(SVG, name)}")
    chromium.open(tmp_path / "a.html")
    assert chromium.run("document.title") == "safe"
    assert chromium.run("document.images[0].alt") == name
