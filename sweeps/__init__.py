"""The lists of experiments.py: their runs planned, trained and measured; the table, the picture, the scaling law.
In: other commands, as processes. Out: out/<list>/{experiment.csv, .md, .png, .svg} and a directory for each run.
Read lists.py first, then measures.py."""
