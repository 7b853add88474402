"""The compressor, 512 wide, 8 blocks, of which six run at half the length; the rest are train.py's defaults."""

model = "compressor"
n_embd = 512
