# The demo: trains a storyteller in two minutes on two CPU cores (six on slow ones); its stories
# need no download.
recipe = "fast"
data = "builtin"
block_size = 256  # nearly every built-in story fits
n_layer = 4
n_head = 4
n_embd = 128
copy_init = 0.03
batch_size = 8
grad_accum_steps = 1
max_steps = 4000
max_minutes = 2.0
min_steps = 1250  # however long they take: with fewer, stories mix up their characters' names
learning_rate = 6e-3
log_interval = 20
eval_tokens = 40_000
