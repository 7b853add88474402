# What the runs of experiments.py have in common at the small scale: two CPU cores, data/sample, minutes.
recipe = "fast"
data = "sample"
block_size = 256
n_embd = 64
batch_size = 8
grad_accum_steps = 1
log_interval = 20
