"""What the runs of experiments.py have in common at the published scale: the published settings, for a GPU."""

data = "tinystories"
n_layer = 8
n_head = 16
n_embd = 256
