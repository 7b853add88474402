"""Small tools that all other rooms use: files written atomically, CSV tables, downloads, 95% intervals.
In: paths, rows, URLs, scores. Out: files that are whole or absent, and numbers with their intervals.
Read files.py first."""
