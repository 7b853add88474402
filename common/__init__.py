"""Small tools of every other room: files written atomically, CSV tables, downloads, 95 % intervals.
In: paths, rows, URLs, scores. Out: files that are whole or absent, and numbers with their intervals.
Read files.py first."""
