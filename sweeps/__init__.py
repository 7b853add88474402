"""Experiments: which runs one has, training them one by one, and what they cost and reached.
In: the name of an experiment. Out: out/<experiment>/{experiment.csv, experiment.png} and a run for each variant.
Read plans.py first (the variants and their budgets), then runner.py."""
