"""What is inside a model: activations by name (hooks.py, read it first), what heads look at and write, what neurons
fire on, the loss without them, what carries an answer. In: a model and stories. Out: rows of heads.csv, neurons.csv."""
