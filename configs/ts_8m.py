"""TinyStories-8M, as published: 256 wide, 8 layers, 16 heads. The other settings are train.py's defaults."""

data = "tinystories"
n_embd = 256
n_layer = 8
n_head = 16
