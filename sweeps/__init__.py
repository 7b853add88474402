"""Lists of training runs: which runs an experiment has, training them one by one, and what came of it.
In: the name of an experiment. Out: out/<experiment>/{experiment.csv, experiment.png} and a run for each variant.
Read scaling_law.py last; the plans come first."""
