# What the runs of experiments.py have in common at the published scale: train.py's defaults, for a GPU.
