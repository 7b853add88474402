# The 1M model (64 wide, 8 layers, 16 heads) with Muon and story windows: ten minutes on two CPU cores.
# $ python prepare.py --input train.txt --val valid.txt --name sample && python train.py configs/cpu_1m.py
recipe = "fast"
data = "sample"
block_size = 256
n_embd = 64
bigram_init = 0.2
attend_within_story = True
batch_size = 8
grad_accum_steps = 1
max_steps = 20_000
max_minutes = 8.5
beta1 = 0.85
