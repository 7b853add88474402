"""Models with random weights, and runs of them, for tests that ask a model questions."""

import dataclasses

import torch

from checkpoints.checkpoint import CHECKPOINT_FORMAT
from corpus.tokenizer import Tokenizer, gpt2
from model import GPTNeo, GPTNeoConfig

TOKENIZER = Tokenizer(gpt2().vocabulary["tokens"][:2999])  # and the end of text: 3,000 ids


def random_model(**shape) -> GPTNeo:
    torch.manual_seed(0)
    shape = dict(block_size=128, n_layer=2, n_head=2, n_embd=8, window_size=8) | shape
    config = GPTNeoConfig(vocab_size=3000, **shape)
    model = GPTNeo(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def save_run(directory, model: GPTNeo, **facts):
    """facts: others of the checkpoint, such as its train_config."""
    directory.mkdir(parents=True)
    checkpoint = dict(
        format=CHECKPOINT_FORMAT, model_config=dataclasses.asdict(model.config), vocabulary=TOKENIZER.vocabulary
    )
    torch.save(checkpoint | facts | dict(model=model.state_dict()), directory / "ckpt.pt")
