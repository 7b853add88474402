"""Beyond plain GPT-Neo: the compressor (two tokens in one step), the contrastive loss, packed stories read alone.
In: tokens. Out: logits or a loss, with the interface of model.py.
Read compressor.py first."""
