"""What all pages share: their language, pictures that cannot run scripts."""

from nanostories.pages.html import image, language_of

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>parent.document.title = 1</script></svg>'


def test_a_page_says_its_language_only_if_it_is_known():
    assert language_of(["She was happy and he was not."]) == "en"
    assert language_of(["एक छोटी लड़की थी। उसका नाम मीना था।"]) == ""


def test_scripts_in_a_picture_never_run(chromium, tmp_path):
    name = '<b>"name"</b>'
    (tmp_path / "a.html").write_text(f"<title>safe</title>{image(SVG, name)}")
    chromium.open(tmp_path / "a.html")
    assert chromium.run("document.title") == "safe"
    assert chromium.run("document.images[0].alt") == name
