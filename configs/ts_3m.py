# TinyStories-3M, as published: 128 wide, 8 layers; 16 heads and the rest are train.py's defaults.
n_embd = 128
