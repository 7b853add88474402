"""What is inside a model: activations through hooks, roles of heads, preferences of neurons, ablation.
In: a model and validation stories. Out: heads.csv, neurons.csv, attention.html, neurons.html, summary.json.
Read hooks.py first."""
