# TinyStories-33M, the shape on the hub: 768 wide, 4 layers, 16 heads.
# The rest is train.py's defaults.
n_embd = 768
n_layer = 4
