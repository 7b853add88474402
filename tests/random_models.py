"""Models with random weights, ours and as transformers has them, and runs of them."""

import dataclasses
import json

import torch

from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.checkpoint import CHECKPOINT_FORMAT
from nanostories.checkpoints.huggingface import config_to_hf, hf_tensors
from nanostories.corpus.tokenizer import Tokenizer, gpt2

TOKENIZER = Tokenizer(gpt2().vocabulary["tokens"][:2999])  # and the end of text: 3,000 ids


@torch.no_grad()
def randomize(model: torch.nn.Module, std: float = 0.15):
    """The model with weights far from their initialization, so that every one of them shows in the
    logits."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        mean = 1.0 if "ln" in name and "weight" in name else 0.0
        torch.nn.init.normal_(parameter, mean, std)
    return model.eval()


def random_model(**shape) -> GPTNeo:
    default = dict(vocab_size=97, block_size=40, n_layer=3, n_head=4, n_embd=32, window_size=7)
    return randomize(GPTNeo(GPTNeoConfig(**default | shape)))


def model_to_probe(**shape) -> GPTNeo:
    """With the vocabulary of TOKENIZER."""
    default = dict(vocab_size=3000, block_size=128, n_layer=2, n_head=2, n_embd=8, window_size=8)
    return randomize(GPTNeo(GPTNeoConfig(**default | shape)), std=0.5)


def save_run(
    directory, model: GPTNeo, tokenizer: Tokenizer = TOKENIZER, name: str = "ckpt.pt", **facts
):
    """As much of a checkpoint as sampling needs. facts: others, or in place of these."""
    directory.mkdir(parents=True, exist_ok=True)
    checkpoint = {
        "format": CHECKPOINT_FORMAT,
        "architecture": "gptneo",
        "model_config": dataclasses.asdict(model.config),
        "model": model.state_dict(),
        "vocabulary": tokenizer.vocabulary,
        "train_config": {"data_dir": "data", "data": "none"},
        "data_sha256": "",
    }
    torch.save(checkpoint | facts, directory / name)


def trained_on(data_dir, name: str) -> dict:
    """The facts of a checkpoint about the corpus of its run, which need not exist."""
    meta = data_dir / name / "meta.json"
    sha256 = json.loads(meta.read_text())["splits"]["train"]["sha256"] if meta.exists() else ""
    return dict(train_config=dict(data_dir=str(data_dir), data=name), data_sha256=sha256)


def as_transformers(model: GPTNeo):
    """The same weights in the reference implementation, GPT-Neo or GPT-2. If ours were exchanged on
    the way, the logits would differ."""
    import transformers  # here, as it is slow to import

    settings = config_to_hf(model.config) | {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.AutoConfig.for_model(**settings)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    state = {"lm_head.weight": model.wte.weight}
    for name, weight in hf_tensors(model).items():
        state[f"transformer.{name}"] = weight
    theirs.load_state_dict({name: weight.detach().clone() for name, weight in state.items()})
    return theirs
