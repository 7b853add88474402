"""
Figures as files: a PNG to look at anywhere, and beside it the SVG that report.py puts into its
page.

>>> save_figure(figure, Path("out/demo/loss.png"))  # and out/demo/loss.svg
"""

import io
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from nanostories.files import write_bytes

# Ids depend on the figure alone, so that equal figures are equal files. Lines may be a pixel off:
# the picture of forty runs is half as large.
SVG = {"svg.fonttype": "none", "svg.hashsalt": "nanostories", "path.simplify_threshold": 1.0}


def save_figure(figure: Figure, path: Path) -> None:
    file = io.BytesIO()
    figure.savefig(file, dpi=120, format="png")
    write_bytes(path, file.getvalue())
    # Keep the layout: computing it again takes as long as drawing.
    figure.set_layout_engine("none")
    write_bytes(path.with_suffix(".svg"), svg_bytes(figure))


def svg_bytes(figure: Figure) -> bytes:
    """Without a background, so that a dark page can invert its colors."""
    file = io.BytesIO()
    with matplotlib.rc_context(SVG):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()
