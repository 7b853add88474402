"""The demo: a storyteller in two minutes on two CPU cores, from stories that need no download."""

data = "builtin"
block_size = 256
n_layer = 6
n_head = 4
n_embd = 128
batch_size = 8
grad_accum_steps = 1
max_steps = 3000
max_minutes = 1.75
optimizer = "muon"
learning_rate = 4e-3
warmup_steps = 50
warmdown = 0.6
log_interval = 20
eval_interval = 250
eval_tokens = 40_000
align_stories = True
