"""Experiments: which runs they have, training these one by one, and their costs and results.
In: the name of an experiment. Out: out/<experiment>/{experiment.csv, experiment.png} and a run for each variant.
Read plans.py first (the variants and their budgets), then runner.py."""
