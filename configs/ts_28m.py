# TinyStories-28M, as published: 512 wide, 8 layers; 16 heads and the rest are train.py's defaults.
n_embd = 512
