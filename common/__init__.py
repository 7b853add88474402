"""Small tools that all packages share: files written atomically, the hub, tables, figures, flags, statistics.
In: paths, rows, scores. Out: files that are whole or absent, and numbers with their intervals.
Read files.py first."""
