"""
The parts that sections are made of: what pages/report.js draws, by their "type". Here the two that several use.

>>> table([("run", "text"), ("loss", 3)], [["a", 1.5], ["b", [1.6, 1.5, 1.7]]])  # b's with its interval
"""


def table(columns: list[tuple], rows: list[list], caption: str = "", **others) -> dict:
    """columns: (title, kind, explanation). A cell is None, or by the kind of its column

    text: a string;  integer, exponent, percent, or 0 to 4 (decimals): a number, or [value, low, high];
    figures: such a cell and its kind;  link: [text, address].
    """
    columns = [dict(zip(("title", "kind", "help"), (*column, ""))) for column in columns]
    return dict(type="table", columns=columns, rows=rows, caption=caption) | others


def bars(panels: list[dict], caption: str = "") -> dict:
    """panels: title, kind as of a table's column, bars [[name, value, low, high]], marks {explanation: value}, end."""
    return dict(type="bars", panels=panels, caption=caption)
