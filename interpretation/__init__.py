"""What is inside a model: activations through hooks, roles of heads, preferences of neurons, ablation.
In: a model and validation stories. Out: the contents of heads.csv, neurons.csv and summary.json, and neurons.html's cards.
Read hooks.py first; activation_statistics.py runs the model over all stories."""
