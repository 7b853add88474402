# TinyStories-1Layer-21M, as published: 1024 wide, 1 layer; 16 heads and the rest are train.py's defaults.
n_embd = 1024
n_layer = 1
