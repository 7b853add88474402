# TinyStories-2Layers-33M, as published: 1024 wide, 2 layers; 16 heads and the rest are train.py's defaults.
n_embd = 1024
n_layer = 2
