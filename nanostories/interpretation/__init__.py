"""The inside of a model: activations by name (hooks.py, read it first), attention and outputs of
heads, peaks of neurons, the loss without them, activation patching. In: a model and stories. Out:
rows of heads.csv, neurons.csv."""
