"""HTML: page templates, styles and scripts, and the Python that fills them from the results on disk.
In: what the commands have written below out/. Out: pages, each one file that needs no network.
Read html.py first (how a page is made), then one of sections_*.py (what report.html shows)."""
