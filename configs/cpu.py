# Ten minutes on two CPU cores, on real stories: 128 wide, 6 layers, 8 heads, with Muon; each story
# is read alone. $ python prepare.py --input train.txt --val valid.txt --name real && python
# train.py configs/cpu.py
recipe = "fast"
data = "real"
block_size = 256
n_layer = 6
n_head = 8
n_embd = 128
bigram_init = 0.2
attend_within_story = True
short_window_steps = 120
batch_size = 8
grad_accum_steps = 1
max_steps = 20_000
max_minutes = 8.5
beta1 = 0.85
