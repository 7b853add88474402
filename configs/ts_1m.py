# TinyStories-1M, as published: 64 wide, 8 layers; 16 heads and the rest are train.py's defaults.
n_embd = 64
