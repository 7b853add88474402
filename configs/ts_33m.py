# TinyStories-33M, as published: 768 wide, 4 layers; 16 heads and the rest are train.py's defaults.
n_embd = 768
n_layer = 4
