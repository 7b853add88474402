# TinyStories-2Layers-33M, the shape on the hub: 1024 wide, 2 layers, 16 heads.
# The rest is train.py's defaults.
n_embd = 1024
n_layer = 2
