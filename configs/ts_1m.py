"""TinyStories-1M, as published: 64 wide, 8 layers, 16 heads. The other settings are train.py's defaults."""

data = "tinystories"
n_embd = 64
n_layer = 8
n_head = 16
