"""HTML: page templates, styles and scripts, and the Python that fills them from the results on disk.
In: what the commands have written below out/. Out: pages of one file each that open without a network.
Read html.py first (how a page is made), then one of sections_*.py (what report.html shows)."""
