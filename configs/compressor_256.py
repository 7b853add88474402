# Our compressor of token pairs, 256 wide, 8 blocks, of which six run at half the length; else train.py's defaults.
architecture = "pair_compressor"
