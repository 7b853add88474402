# TinyStories-1Layer-21M, the shape on the hub: 1024 wide, 1 layer, 16 heads.
# The rest is train.py's defaults.
n_embd = 1024
n_layer = 1
