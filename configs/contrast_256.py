# The contrastive model, 256 wide, 8 layers, with the published form of its objective; compare ts_8m.py.
contrast = "reciprocal"
