"""Beyond plain GPT-Neo: the compressor (two tokens per step), the contrastive loss. In: tokens. Out: logits or a loss,
with the interface of model.py. Read compressor.py first."""
