"""
Models in the files of Hugging Face's transformers: read from a directory or the hub, written from a
run.

# or "gpt2", or a directory that transformers wrote
>>> model = load_hf("roneneldan/TinyStories-1M")
>>> tokenizer = load_hf_tokenizer("roneneldan/TinyStories-1M")
>>> save_hf(model, "exported/", tokenizer)          # for AutoModelForCausalLM and AutoTokenizer

Only GPT-Neo and GPT-2 in the forms that model.py supports; anything else is refused, and the
message names the setting.
"""

import contextlib
import dataclasses
import re
from pathlib import Path

import safetensors.torch
import torch
import torch.nn as nn

from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.checkpoint import load_run, load_torch
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import (
    BPE_PATTERN,
    BYTES,
    END_OF_TEXT,
    GPT2_PATTERN,
    Tokenizer,
    gpt2,
)
from nanostories.files import read_json, write_bytes, write_json
from nanostories.hub import from_hub

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in the order of preference


def model_directory(path_or_id: str | Path) -> Path:
    """A local directory as is, or that of a hub model (`owner/name` or `gpt2`) in the hub's
    cache."""
    if Path(path_or_id).is_dir():
        return Path(path_or_id)
    for name in WEIGHTS:
        directory = from_hub(str(path_or_id), ["config.json", "tokenizer.json", name])
        if (directory / name).exists():
            break
    return directory


# ---- config.json ----
# Our sizes -> theirs; GPT-2 has no window. We have one dropout where they have three; reading takes
# the first.
HF_KEYS = {
    "gpt_neo": dict(
        vocab_size="vocab_size",
        block_size="max_position_embeddings",
        n_layer="num_layers",
        n_head="num_heads",
        n_embd="hidden_size",
        window_size="window_size",
    ),
    "gpt2": (
        {"block_size": "n_positions"}
        | {name: name for name in ("vocab_size", "n_layer", "n_head", "n_embd")}
    ),
}
DROPOUTS = {
    "gpt_neo": ("resid_dropout", "embed_dropout", "attention_dropout"),
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
}
EXPORTED = {
    *HF_KEYS["gpt_neo"],
    "dropout",
    "scale_attention",
    "qkv_bias",
}  # the settings that config_to_hf knows
# Buffers that old versions of transformers saved beside the weights: the causal mask and its minus
# infinity.
HF_MASKS = re.compile(r"h\.\d+\.attn\.(attention\.)?(masked_)?bias")


def fixed_settings(model_type: str, n_embd: int) -> dict:
    """Settings that config.json must have, or leave out for equal defaults of transformers:
    model.py has no others."""
    settings = dict(
        activation_function="gelu_new", layer_norm_epsilon=1e-5, tie_word_embeddings=True
    )
    if model_type == "gpt_neo":
        return settings | dict(architectures=["GPTNeoForCausalLM"], intermediate_size=4 * n_embd)
    settings |= dict(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return settings | dict(architectures=["GPT2LMHeadModel"], n_inner=4 * n_embd)


def layer_kinds(n_layer: int) -> list[str]:
    return (["global", "local"] * n_layer)[:n_layer]


def config_from_hf(path: Path) -> tuple[GPTNeoConfig, str]:
    """Our config and the model_type of a config.json. ValueError names the setting that model.py
    does not support."""
    hf_config = read_json(path)
    model_type = str(hf_config.get("model_type"))
    if model_type not in HF_KEYS:
        raise UserError(f"{path}: model_type is {model_type}; only gpt_neo and gpt2 can be read")
    sizes = {ours: hf_config.get(theirs) for ours, theirs in HF_KEYS[model_type].items()}
    for ours, value in sizes.items():
        if type(value) is not int:
            raise UserError(
                f"{path}: {HF_KEYS[model_type][ours]} is {value!r}; it must be a whole number"
            )
    n_layer, layers = sizes["n_layer"], hf_config.get("attention_types") or ()
    layers = [kind for kinds, times in layers for kind in kinds * times]
    if model_type == "gpt_neo" and layers not in (["global"] * n_layer, layer_kinds(n_layer)):
        known = "all layers must be global, or alternating global and local"
        raise UserError(f"{path}: attention_types is {hf_config.get('attention_types')!r}; {known}")
    if layers != layer_kinds(n_layer):
        sizes["window_size"] = sizes["block_size"]
    for key, value in fixed_settings(model_type, sizes["n_embd"]).items():
        if hf_config.get(key) not in (None, value):
            raise UserError(f"{path}: {key} is {hf_config[key]!r}; model.py only has {value!r}")
    scale = dict(scale_attention=hf_config.get("scale_attn_weights", True), qkv_bias=True)
    dropout = hf_config.get(DROPOUTS[model_type][0], 0.0)
    try:
        return (
            GPTNeoConfig(**sizes, dropout=dropout, **(scale if model_type == "gpt2" else {})),
            model_type,
        )
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def config_to_hf(config: GPTNeoConfig) -> dict:
    """config.json for transformers: GPT-2's if q, k and v have a bias, else GPT-Neo's. ValueError
    if neither fits."""
    others = {
        field.name
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != field.default
    }
    if unknown := others - EXPORTED:
        raise UserError(
            f"cannot be exported: config_to_hf knows nothing of {', '.join(sorted(unknown))}"
        )
    all_global = all(config.window(layer) >= config.block_size for layer in range(config.n_layer))
    if config.scale_attention and not config.qkv_bias or config.qkv_bias and not all_global:
        needs = "scale_attention needs qkv_bias, and qkv_bias a window_size of block_size"
        raise UserError(f"neither GPT-Neo nor GPT-2 can hold this model: {needs}")
    model_type = "gpt2" if config.qkv_bias else "gpt_neo"
    hf_config = {"model_type": model_type} | fixed_settings(model_type, config.n_embd)
    hf_config |= {theirs: getattr(config, ours) for ours, theirs in HF_KEYS[model_type].items()}
    hf_config |= dict.fromkeys(DROPOUTS[model_type], config.dropout)
    if model_type == "gpt2":
        return hf_config | {"scale_attn_weights": config.scale_attention}
    return hf_config | {"attention_types": [[layer_kinds(config.n_layer), 1]]}


# ---- Weights ----
def read_weights(directory: Path, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a directory that transformers wrote, by name without the prefix
    "transformer.".

    ValueError names those that are missing, unknown, or of another shape than in `expected`.
    """
    path = next((directory / name for name in WEIGHTS if (directory / name).exists()), None)
    if path is None:
        raise UserError(f"{directory}: holds neither {' nor '.join(WEIGHTS)}")
    try:
        weights = (
            safetensors.torch.load_file(path) if path.suffix == ".safetensors" else load_torch(path)
        )
    except safetensors.SafetensorError as error:
        raise UserError(
            f"{path}: not a readable weights file, perhaps cut short ({error})"
        ) from None
    weights = {str(name).removeprefix("transformer."): weight for name, weight in weights.items()}
    weights = {name: weight for name, weight in weights.items() if not HF_MASKS.fullmatch(name)}
    head = weights.pop("lm_head.weight", weights.get("wte.weight"))
    found, asked = (
        {name: getattr(x, "shape", None) for name, x in tensors.items()}
        for tensors in (weights, expected)
    )
    for name in sorted(dict(found.items() ^ asked.items())):
        raise UserError(
            f"{path}: {name} is {found.get(name)}, but config.json asks for {asked.get(name)}"
        )
    if not torch.equal(head.float(), weights["wte.weight"].float()):
        raise UserError(f"{path}: lm_head.weight differs from wte.weight, but model.py ties them")
    return weights


@torch.no_grad()
def load_hf(path_or_id: str | Path) -> GPTNeo:
    """GPT-Neo or GPT-2 in fp32, from a directory that transformers wrote or from the hub. In eval
    mode.

    ValueError names the file and its fault.
    """
    directory = model_directory(path_or_id)
    config, model_type = config_from_hf(directory / "config.json")
    with torch.device(
        "meta"
    ):  # shapes only: nothing is allocated until the weights are known to fit
        model = GPTNeo(config)
    weights = read_weights(directory, hf_tensors(model, model_type))
    model.to_empty(device="cpu")
    model.head.weight = model.wte.weight  # to_empty untied them
    for name, tensor in hf_tensors(model, model_type).items():
        tensor.copy_(weights[name])
    return model.eval()


@torch.no_grad()
def save_hf(
    model: GPTNeo, directory: str | Path, tokenizer: Tokenizer, prompt_prefix: str = END_OF_TEXT
) -> None:
    """Write config.json, model.safetensors and the tokenizer for transformers' AutoModelForCausalLM
    to load.

    prompt_prefix: goes before every prompt, in config.json. Ours are trained with an end of text
    before every story.
    """
    directory = Path(directory)
    hf_config = config_to_hf(model.config)
    hf_config |= dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.end_of_text)
    tensors = hf_tensors(model, hf_config["model_type"])
    tensors = {
        f"transformer.{name}": tensor.to("cpu", torch.float32).contiguous()
        for name, tensor in tensors.items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_hf_tokenizer(tokenizer, directory)
    write_json(directory / "config.json", hf_config | {"prompt_prefix": prompt_prefix})
    write_bytes(
        directory / "model.safetensors", safetensors.torch.save(tensors, metadata={"format": "pt"})
    )


def hf_tensors(model: GPTNeo, model_type: str) -> dict[str, torch.Tensor]:
    """Our weights by their names in transformers, as views: copying into them loads the model.

    GPT-2 keeps q, k and v in one matrix, as we do, and stores every matrix transposed.
    """
    gpt2 = model_type == "gpt2"
    modules, tensors = {"wte": model.wte, "wpe": model.wpe, "ln_f": model.ln_f}, {}
    for i, block in enumerate(model.blocks):
        modules |= {f"h.{i}.ln_1": block.ln_1, f"h.{i}.ln_2": block.ln_2}
        modules |= {f"h.{i}.mlp.c_fc": block.mlp_in, f"h.{i}.mlp.c_proj": block.mlp_out}
        if gpt2:
            modules |= {f"h.{i}.attn.c_attn": block.qkv, f"h.{i}.attn.c_proj": block.attention_out}
        else:
            modules[f"h.{i}.attn.attention.out_proj"] = block.attention_out
            names = [f"h.{i}.attn.attention.{name}_proj.weight" for name in "qkv"]
            tensors |= zip(names, block.qkv.weight.chunk(3))
    for name, module in modules.items():
        transposed = gpt2 and isinstance(module, nn.Linear)
        tensors[f"{name}.weight"] = module.weight.T if transposed else module.weight
        if getattr(module, "bias", None) is not None:
            tensors[f"{name}.bias"] = module.bias
    return tensors


# ---- The tokenizer's files ----
def tokenizer_json(tokenizer: Tokenizer) -> dict:
    special = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    special |= dict(id=tokenizer.end_of_text, content=END_OF_TEXT)
    tokens, pattern = tokenizer.vocabulary["tokens"], tokenizer.vocabulary["pattern"]
    byte_level = dict(
        type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True
    )  # GPT-2's pattern
    words = dict(type="Split", pattern=dict(Regex=pattern), behavior="Isolated", invert=False)
    by_pattern = dict(type="Sequence", pretokenizers=[words, byte_level | dict(use_regex=False)])
    vocab = {token: i for i, token in enumerate([*tokens, END_OF_TEXT])}
    facts = dict(
        version="1.0", truncation=None, padding=None, added_tokens=[special], normalizer=None
    )
    facts |= dict(pre_tokenizer=byte_level if pattern == GPT2_PATTERN else by_pattern)
    facts |= dict(post_processor=None, decoder=byte_level)
    return facts | dict(model=dict(type="BPE", vocab=vocab, merges=tokenizer.merges()))


def essentials(facts: dict) -> tuple:
    """The parts of a tokenizer.json on which the ids depend."""
    model, splits = (
        facts["model"],
        facts["pre_tokenizer"].get("pretokenizers", [facts["pre_tokenizer"]]),
    )
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    vocab = model["vocab"] | {token["content"]: token["id"] for token in facts["added_tokens"]}
    splits = [
        dict(add_prefix_space=True, use_regex=True) | split | dict(trim_offsets=None)
        for split in splits
    ]
    return vocab, merges, facts["normalizer"], splits


def load_model(name: str) -> tuple[GPTNeo, Tokenizer]:
    """The model and tokenizer of a run, a checkpoint, or hf:ID-or-directory."""
    if not name.startswith("hf:"):
        return load_run(name)
    directory = model_directory(name.removeprefix("hf:"))
    model, tokenizer = load_hf(directory), load_hf_tokenizer(directory)
    if (ids := tokenizer.vocab_size) != model.config.vocab_size:
        raise UserError(
            f"{directory}: the model has {model.config.vocab_size} ids, its tokenizer {ids}"
        )
    return model, tokenizer


def load_hf_tokenizer(path_or_id: str | Path) -> Tokenizer:
    """The tokenizer of a model in a directory or on the hub. ValueError if no vocabulary of ours
    would give its ids.

    The published TinyStories models use GPT-2's own, with or without a tokenizer.json beside them.
    """
    directory = model_directory(path_or_id)
    path = directory / "tokenizer.json"
    if not path.exists():
        if read_json(directory / "config.json").get("vocab_size") == gpt2().vocab_size:
            return gpt2()
        raise UserError(f"{path}: missing, and the vocab_size in config.json is not GPT-2's")
    facts = read_json(path)
    with contextlib.suppress(KeyError, TypeError, AttributeError):  # another tokenizer's layout
        vocab = facts["model"]["vocab"]
        tokens = sorted(vocab.keys() - {END_OF_TEXT}, key=vocab.get)
        for pattern in (GPT2_PATTERN, BPE_PATTERN) if BYTES.keys() <= vocab.keys() else ():
            tokenizer = Tokenizer(tokens, pattern)
            if essentials(facts) == essentials(tokenizer_json(tokenizer)):
                return tokenizer
    raise UserError(
        f"{path}: not byte-level BPE as GPT-2's, or as prepare.py learns it; no other can be read"
    )


def save_hf_tokenizer(tokenizer: Tokenizer, directory: str | Path) -> None:
    """Write the tokenizer.json and tokenizer_config.json that transformers.AutoTokenizer loads.

    It gives the same ids as ours, except that it takes a literal "<|endoftext|>" in a text for the
    special token.
    """
    settings = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}  # uses tokenizer.json as is
    settings |= {"clean_up_tokenization_spaces": False}  # otherwise "Oh ." comes back as "Oh."
    write_json(Path(directory, "tokenizer.json"), tokenizer_json(tokenizer))
    write_json(Path(directory, "tokenizer_config.json"), settings)
