"""TinyStories-33M, as published: 768 wide, 4 layers, 16 heads. The other settings are train.py's defaults."""

data = "tinystories"
n_embd = 768
n_layer = 4
n_head = 16
