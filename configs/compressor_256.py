# The compressor as published: 256 wide; 8 blocks, half of them the encoder's. The rest are train.py's defaults.
architecture = "compressor"
