"""Experiments: the runs of a list and their costs, training them one by one, the table, the plot, the scaling law.
In: a list of experiments.py. Out: out/<experiment>/{experiment.csv, .md, .png, .svg} and a run for each variant.
Read plan.py first, then runner.py."""
