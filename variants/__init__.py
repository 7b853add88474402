"""Beyond plain GPT-Neo: compressors (two tokens become one vector), the contrastive loss. In: tokens. Out: logits or a
loss, with the interface of model.py. Read compressor.py first."""

from model import GPTNeo
from variants.compressor import Compressor
from variants.pair_compressor import PairCompressor

MODELS = {"gptneo": GPTNeo, "gpt2": GPTNeo, "compressor": Compressor, "pair_compressor": PairCompressor}
