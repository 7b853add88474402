"""Models with random weights, ours and as transformers has them, and runs of them."""

import dataclasses
import json

import torch

from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.checkpoint import CHECKPOINT_FORMAT
from nanostories.corpus.tokenizer import Tokenizer, gpt2

TOKENIZER = Tokenizer(gpt2().vocabulary["tokens"][:2999])  # and the end of text: 3,000 ids


@torch.no_grad()
def randomize(model: torch.nn.Module, std: float = 0.15):
    """The model with weights far from their initialization, so that every one of them shows in the
    logits."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(
            parameter, mean=1.0 if "ln" in name and "weight" in name else 0.0, std=std
        )
    return model.eval()


def random_model(**shape) -> GPTNeo:
    shape = (
        dict(vocab_size=97, block_size=40, n_layer=3, n_head=4, n_embd=32, window_size=7) | shape
    )
    return randomize(GPTNeo(GPTNeoConfig(**shape)))


def model_to_probe(**shape) -> GPTNeo:
    """With the vocabulary of TOKENIZER."""
    shape = (
        dict(vocab_size=3000, block_size=128, n_layer=2, n_head=2, n_embd=8, window_size=8) | shape
    )
    return randomize(GPTNeo(GPTNeoConfig(**shape)), std=0.5)


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
    """The same weights in the reference implementation."""
    import transformers  # here, as it is slow to import

    c = model.config
    config = transformers.GPTNeoConfig(
        vocab_size=c.vocab_size,
        max_position_embeddings=c.block_size,
        hidden_size=c.n_embd,
        num_layers=c.n_layer,
        num_heads=c.n_head,
        window_size=c.window_size,
        attention_types=[[["local" if i % 2 else "global"], 1] for i in range(c.n_layer)],
        resid_dropout=0.0,
        embed_dropout=0.0,
        attention_dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = transformers.GPTNeoForCausalLM(config).eval()
    state = {"transformer.wte.weight": model.wte.weight, "transformer.wpe.weight": model.wpe.weight}
    state |= {
        "transformer.ln_f.weight": model.ln_f.weight,
        "transformer.ln_f.bias": model.ln_f.bias,
    }
    state["lm_head.weight"] = model.wte.weight
    for i, block in enumerate(model.blocks):
        prefix = f"transformer.h.{i}."
        for name, weight in zip("qkv", block.qkv.weight.chunk(3)):
            state[f"{prefix}attn.attention.{name}_proj.weight"] = weight
        for name, module in {
            "attn.attention.out_proj": block.attention_out,
            "ln_1": block.ln_1,
            "ln_2": block.ln_2,
            "mlp.c_fc": block.mlp_in,
            "mlp.c_proj": block.mlp_out,
        }.items():
            state[f"{prefix}{name}.weight"], state[f"{prefix}{name}.bias"] = (
                module.weight,
                module.bias,
            )
    theirs.load_state_dict(
        {name: weight.detach().clone() for name, weight in state.items()}, strict=True
    )
    return theirs
