# Stories to order, in three minutes on two CPU cores: the demo's model on built-in stories with
# headers.
# $ python train.py configs/builtin_instruct.py
# $ python sample.py --words "hide, fox, little" --temperature 0.6
data = "builtin-instruct"
loss_on = "story"
block_size = 320  # nearly every built-in story fits, its header included
n_layer = 4
n_head = 4
n_embd = 128
copy_init = 0.03
batch_size = 8
grad_accum_steps = 1
max_steps = 4000
max_minutes = 3.0
log_interval = 20
eval_tokens = 60_000
# as configs/fast.py, but for the learning rate
optimizer = "muon"
learning_rate = 6e-3
beta2 = 0.99
align_stories = True
warmup_steps = 10
warmdown = 0.6
