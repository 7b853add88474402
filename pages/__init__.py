"""HTML: page templates, styles and scripts, and what fills them from the results on disk.
In: the files that the commands leave in out/. Out: pages that open without a network.
Read html.py first, then sections.py."""
