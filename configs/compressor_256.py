# The compressor, 256 wide, 8 blocks, of which six run at half the length; the rest are train.py's defaults.
architecture = "pair_compressor"
