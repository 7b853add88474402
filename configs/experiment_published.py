# What the runs of experiments.py have in common at the scale of the published models: train.py's defaults, for a GPU.
