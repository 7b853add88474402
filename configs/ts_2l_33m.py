"""TinyStories-2Layers-33M, as published: 1024 wide, 2 layers, 16 heads. The other settings are train.py's defaults."""

data = "tinystories"
n_embd = 1024
n_layer = 2
n_head = 16
