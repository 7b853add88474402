# The contrastive model as published: 256 wide, 8 layers; compare ts_8m.py, the same without the objective.
contrast = "published"
