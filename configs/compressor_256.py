"""The compressor, 256 wide, 8 blocks, of which six run at half the length; otherwise as ts_8m.py."""

model = "compressor"
data = "tinystories"
n_embd = 256
n_layer = 8
n_head = 16
