"""What is inside a model: activations through hooks, roles of heads, preferences of neurons, ablation.
In: a model and validation stories. Out: what heads.csv, neurons.csv, summary.json and neurons.html say.
Read hooks.py first; activation_statistics.py runs the model over all stories."""
