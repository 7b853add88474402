# Settings shared by the runs of experiments.py at the small and real scales, on two CPU cores. Each
# list sets the data, the steps, the learning rate and its warm-up; those here are for train.py by
# itself.
data = "builtin"
block_size = 256  # nearly every built-in story fits
n_layer = 4
n_head = 4
n_embd = 128
batch_size = 8
grad_accum_steps = 1
log_interval = 20
eval_tokens = 20_000
compile = False  # takes longer than it saves in so short a run
# as configs/fast.py
optimizer = "muon"
learning_rate = 8e-3
beta2 = 0.99
align_stories = True
warmup_steps = 10
warmdown = 0.6
