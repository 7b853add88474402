# TinyStories-1M, the shape on the hub: 64 wide, 8 layers, 16 heads.
# The rest is train.py's defaults.
n_embd = 64
