"""The compressor, 512 wide, 8 blocks, of which six run at half the length; otherwise as ts_28m.py."""

model = "compressor"
data = "tinystories"
n_embd = 512
n_layer = 8
n_head = 16
