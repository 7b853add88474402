"""The contrastive model, 256 wide, 8 layers, with the published form of its objective; compare ts_8m.py."""

data = "tinystories"
n_embd = 256
n_layer = 8
n_head = 16
contrast = "reciprocal"
