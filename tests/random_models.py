"""Models with random weights, ours and as transformers has them."""

import torch

from model import GPTNeo, GPTNeoConfig


def random_model(seed: int = 0, **shape) -> GPTNeo:
    """Weights far from their initialization, so that every one of them shows in the logits."""
    torch.manual_seed(seed)
    shape = dict(vocab_size=97, block_size=40, n_layer=3, n_head=4, n_embd=32, window_size=7) | shape
    model = GPTNeo(GPTNeoConfig(**shape)).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "ln" in name and "weight" in name else 0.0, std=0.15)
    return model


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
    state |= {"transformer.ln_f.weight": model.ln_f.weight, "transformer.ln_f.bias": model.ln_f.bias}
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
            state[f"{prefix}{name}.weight"], state[f"{prefix}{name}.bias"] = module.weight, module.bias
    theirs.load_state_dict({name: weight.detach().clone() for name, weight in state.items()}, strict=True)
    return theirs
