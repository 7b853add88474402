"""Beyond plain GPT-Neo, with its interface: the compressor (two tokens become one vector), the
contrastive loss."""

from model import GPTNeo
from nanostories.variants.compressor import Compressor

MODELS = {"gptneo": GPTNeo, "gpt2": GPTNeo, "compressor": Compressor}
