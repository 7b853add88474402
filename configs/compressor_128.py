"""The compressor, 128 wide, 8 blocks, of which six run at half the length; otherwise as ts_3m.py."""

model = "compressor"
data = "tinystories"
n_embd = 128
n_layer = 8
n_head = 16
