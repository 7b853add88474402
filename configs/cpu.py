# On two CPU cores and real stories: 8.5 minutes of training, about ten with start-up and evaluation
# (`bench.py track` trains for 10). Each story is read alone.
# $ python prepare.py --input train.txt --val valid.txt --name real
# $ python train.py configs/cpu.py
data = "real"
attend_within_story = True
short_window_steps = 120
block_size = 256
n_layer = 6
n_head = 8
n_embd = 128
bigram_init = 0.2
batch_size = 8
grad_accum_steps = 1
max_steps = 20_000
max_minutes = 8.5
# as configs/fast.py, but for beta1
beta1 = 0.85
optimizer = "muon"
learning_rate = 8e-3
beta2 = 0.99
align_stories = True
warmup_steps = 10
warmdown = 0.6
