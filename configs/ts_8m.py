# TinyStories-8M, as published: 256 wide, 8 layers; 16 heads and the rest are train.py's defaults.
n_embd = 256
