# Settings shared by the runs of experiments.py at the scale of the published models: train.py's
# defaults, for a GPU.
