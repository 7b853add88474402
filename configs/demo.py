# The demo: trains a storyteller on two CPU cores, in two minutes (up to seven on slow ones); its
# stories need no download.
data = "builtin"
block_size = 256  # nearly every built-in story fits
n_layer = 4
n_head = 4
n_embd = 128
copy_init = 0.03
batch_size = 8
grad_accum_steps = 1
max_steps = 1400  # with fewer than 1,250, stories mix up their characters' names
log_interval = 20
eval_tokens = 40_000
# as configs/fast.py, but for the learning rate
optimizer = "muon"
learning_rate = 6e-3
beta2 = 0.99
align_stories = True
warmup_steps = 10
warmdown = 0.6
