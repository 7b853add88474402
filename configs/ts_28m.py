# TinyStories-28M, the shape on the hub: 512 wide, 8 layers, 16 heads.
# The rest is train.py's defaults.
n_embd = 512
