"""TinyStories-1Layer-21M, as published: 1024 wide, 1 layer, 16 heads. The other settings are train.py's defaults."""

data = "tinystories"
n_embd = 1024
n_layer = 1
n_head = 16
