"""
Plots as bytes, so that a picture is written atomically like any other file.

>>> write_bytes(Path("out/demo/loss.png"), png_bytes(figure))
"""

import io

from matplotlib.figure import Figure


def png_bytes(figure: Figure, dpi: int = 120) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, dpi=dpi, format="png")
    return file.getvalue()
