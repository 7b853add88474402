"""
Models in the files of Hugging Face's transformers: read from a directory or the hub, written from
a run.

>>> model, tokenizer = load_model("hf:roneneldan/TinyStories-1M")   # or hf: and a directory
>>> save_hf(model, Path("exported"), tokenizer)   # for AutoModelForCausalLM and AutoTokenizer

Only GPT-Neo and GPT-2 in the forms that model.py supports; anything else is refused, and the
message names the setting.
"""

import contextlib
import json
import re
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.checkpoint import from_checkpoint, load_checkpoint, load_tensors
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import (
    BPE_PATTERN,
    END_OF_TEXT,
    GPT2_PATTERN,
    Tokenizer,
    gpt2,
    word_splitter,
)
from nanostories.files import read_json, write_bytes, write_json
from nanostories.hub import from_hub

WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # in the order of preference


def load_model(name: str) -> tuple[GPTNeo, Tokenizer]:
    """The model and tokenizer of a run, a checkpoint, or hf:ID-or-directory."""
    if not name.startswith("hf:"):
        checkpoint = load_checkpoint(name)
        return from_checkpoint(checkpoint), Tokenizer(**checkpoint["vocabulary"])
    directory = model_directory(name.removeprefix("hf:"))
    model = load_hf(directory)
    tokenizer = load_hf_tokenizer(directory)
    n_ids = model.config.vocab_size
    if tokenizer.vocab_size != n_ids:
        raise UserError(
            f"{directory}: the model has {n_ids} ids, its tokenizer {tokenizer.vocab_size}"
        )
    return model, tokenizer


def model_directory(path_or_id: str) -> Path:
    """A local directory as is; for a model of the hub (`owner/name` or `gpt2`), the directory in
    the hub's cache."""
    if Path(path_or_id).is_dir():
        return Path(path_or_id)
    for weights in WEIGHTS:
        directory = from_hub(path_or_id, ["config.json", "tokenizer.json", weights])
        if (directory / weights).exists():
            break
    return directory


# ---- config.json ----
# The names of our sizes there. GPT-2 has no window.
HF_KEYS = {
    "gpt_neo": {
        "vocab_size": "vocab_size",
        "block_size": "max_position_embeddings",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_embd": "hidden_size",
        "window_size": "window_size",
    },
    "gpt2": {
        "block_size": "n_positions",
        "vocab_size": "vocab_size",
        "n_layer": "n_layer",
        "n_head": "n_head",
        "n_embd": "n_embd",
    },
}
# We have one dropout where they have three; reading takes the first.
DROPOUTS = {
    "gpt_neo": ("resid_dropout", "embed_dropout", "attention_dropout"),
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
}


def fixed_settings(model_type: str, n_embd: int) -> dict:
    """The settings of transformers for which model.py has one value only."""
    settings = {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }
    if model_type == "gpt_neo":
        neo = {"architectures": ["GPTNeoForCausalLM"], "intermediate_size": 4 * n_embd}
        return settings | neo
    return settings | {
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "architectures": ["GPT2LMHeadModel"],
        "n_inner": 4 * n_embd,
    }


def alternating_layers(n_layer: int) -> list[str]:
    """The attention of each layer: "global", "local", "global", …"""
    return ["local" if layer % 2 else "global" for layer in range(n_layer)]


def require_alternating(hf_config: dict) -> None:
    """UserError unless every second layer of a GPT-Neo is local."""
    attention_types = hf_config.get("attention_types") or []
    layers = []
    # [["global", "local"], 2] stands for global, local, global, local.
    for kinds, times in attention_types:
        layers += kinds * times
    if layers != alternating_layers(hf_config["num_layers"]):
        known = "model.py has alternating global and local layers only"
        raise UserError(f"attention_types is {attention_types!r}; {known}")


def config_from_hf(hf_config: dict) -> GPTNeoConfig:
    """Our config from the content of a config.json. UserError names the setting that model.py does
    not support."""
    model_type = str(hf_config.get("model_type"))
    if model_type not in HF_KEYS:
        raise UserError(f"model_type is {model_type}; only gpt_neo and gpt2 can be read")
    settings = {"dropout": hf_config.get(DROPOUTS[model_type][0]) or 0.0}
    for name, key in HF_KEYS[model_type].items():
        settings[name] = hf_config.get(key)
        if type(settings[name]) is not int:
            raise UserError(f"{key} is {settings[name]!r}; it must be a whole number")
    for key, value in fixed_settings(model_type, settings["n_embd"]).items():
        # A setting that is absent or null has the default of transformers, which is the same.
        if hf_config.get(key) not in (None, value):
            raise UserError(f"{key} is {hf_config[key]!r}; model.py only has {value!r}")
    if model_type == "gpt2":
        settings["scale_attention"] = hf_config.get("scale_attn_weights", True)
        settings["qkv_bias"] = True
        settings["window_size"] = settings["block_size"]
    else:
        require_alternating(hf_config)
    return GPTNeoConfig(**settings)


def model_type_of(config: GPTNeoConfig) -> str:
    return "gpt2" if config.qkv_bias else "gpt_neo"


def config_to_hf(config: GPTNeoConfig) -> dict:
    """config.json for transformers."""
    model_type = model_type_of(config)
    hf_config = {"model_type": model_type, **fixed_settings(model_type, config.n_embd)}
    for name, key in HF_KEYS[model_type].items():
        hf_config[key] = getattr(config, name)
    for key in DROPOUTS[model_type]:
        hf_config[key] = config.dropout
    if model_type == "gpt2":
        hf_config["scale_attn_weights"] = config.scale_attention
    else:
        hf_config["attention_types"] = [[alternating_layers(config.n_layer), 1]]
    return hf_config


# ---- Weights ----
# Our names -> theirs. GPT-2 keeps q, k and v in one matrix, as we do; GPT-Neo has one for each.
HF_NAMES = {"blocks": "h", "mlp_in": "mlp.c_fc", "mlp_out": "mlp.c_proj"}
HF_ATTENTION_NAMES = {
    "gpt_neo": {"attention_out": "attn.attention.out_proj"},
    "gpt2": {"attention_out": "attn.c_proj", "qkv": "attn.c_attn"},
}
# Buffers that old versions of transformers saved as well: the causal mask and its minus infinity.
HF_MASKS = re.compile(r"h\.\d+\.attn\.(attention\.)?(masked_)?bias")


def hf_tensors(model: GPTNeo) -> dict[str, Tensor]:
    """Our weights by their names in transformers, as views: copying into them loads the model."""
    model_type = model_type_of(model.config)
    names = HF_NAMES | HF_ATTENTION_NAMES[model_type]
    tensors = {}
    for our_name, tensor in model.named_parameters():
        name = ".".join(names.get(part, part) for part in our_name.split("."))
        if model_type == "gpt_neo" and ".qkv." in our_name:
            for letter, weight in zip("qkv", tensor.chunk(3)):
                tensors[name.replace("qkv", f"attn.attention.{letter}_proj")] = weight
        elif model_type == "gpt2" and name.startswith("h."):
            tensors[name] = tensor.t()  # GPT-2 stores matrices transposed
        else:
            tensors[name] = tensor
    return tensors


def read_weights(directory: Path, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a directory that transformers wrote, by name without the prefix
    "transformer.".

    UserError names a tensor that is missing, unknown, or of another shape than in `expected`.
    """
    names = [name for name in WEIGHTS if (directory / name).exists()]
    if not names:
        raise UserError(f"{directory}: holds neither {' nor '.join(WEIGHTS)}")
    path = directory / names[0]
    weights = {}
    for full_name, weight in load_tensors(path).items():
        name = str(full_name).removeprefix("transformer.")
        if not HF_MASKS.fullmatch(name):
            weights[name] = weight
    head = weights.pop("lm_head.weight", weights.get("wte.weight"))
    unmatched = sorted(weights.keys() ^ expected.keys())
    if unmatched:
        problem = "is missing" if unmatched[0] in expected else "is unknown to model.py"
        raise UserError(f"{path}: {unmatched[0]} {problem}")
    for name in sorted(expected):
        found = list(weights[name].shape)
        asked = list(expected[name].shape)
        if found != asked:
            raise UserError(f"{path}: {name} has shape {found}; config.json asks for {asked}")
    if not torch.equal(head.float(), weights["wte.weight"].float()):
        raise UserError(f"{path}: lm_head.weight differs from wte.weight, but model.py ties them")
    return weights


@torch.no_grad()
def load_hf(directory: Path) -> GPTNeo:
    """GPT-Neo or GPT-2 in fp32, from a directory that transformers wrote. In eval mode. UserError
    names the file and its fault."""
    path = directory / "config.json"
    hf_config = read_json(path)
    try:
        config = config_from_hf(hf_config)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    # Shapes only: nothing is allocated until the weights are known to fit.
    with torch.device("meta"):
        model = GPTNeo(config)
    weights = read_weights(directory, hf_tensors(model))
    model.to_empty(device="cpu")
    model.head.weight = model.wte.weight  # to_empty untied them
    for name, tensor in hf_tensors(model).items():
        tensor.copy_(weights[name])
    return model.eval()


@torch.no_grad()
def save_hf(
    model: GPTNeo, directory: Path, tokenizer: Tokenizer, prompt_prefix: str = END_OF_TEXT
) -> None:
    """Write config.json, model.safetensors and the tokenizer for transformers' AutoModelForCausalLM
    to load.

    prompt_prefix: goes before every prompt, in config.json. Ours are trained with an end of text
    before every story.
    """
    hf_config = config_to_hf(model.config)
    hf_config["bos_token_id"] = tokenizer.end_of_text
    hf_config["eos_token_id"] = tokenizer.end_of_text
    hf_config["prompt_prefix"] = prompt_prefix
    tensors = {}
    for name, tensor in hf_tensors(model).items():
        tensors[f"transformer.{name}"] = tensor.to("cpu", torch.float32).contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    save_hf_tokenizer(tokenizer, directory)
    write_json(directory / "config.json", hf_config)
    content = safetensors.torch.save(tensors, metadata={"format": "pt"})
    write_bytes(directory / "model.safetensors", content)


# ---- The tokenizer's files ----
def tokenizer_json(tokenizer: Tokenizer) -> dict:
    """As the package tokenizers writes it."""
    import tokenizers

    tokens = [*tokenizer.vocabulary["tokens"], END_OF_TEXT]
    ids = {token: i for i, token in enumerate(tokens)}
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(ids, merges=[]))
    theirs.add_special_tokens([END_OF_TEXT])
    theirs.pre_tokenizer = word_splitter(tokenizer.vocabulary["pattern"])
    theirs.decoder = tokenizers.decoders.ByteLevel()
    facts = json.loads(theirs.to_str())
    facts["model"]["merges"] = tokenizer.merges()  # older versions read no pairs
    return facts


def essentials(facts: dict) -> tuple:
    """The parts of a tokenizer.json on which the ids depend, in one spelling."""
    vocab = dict(facts["model"]["vocab"])
    for token in facts["added_tokens"]:
        vocab[token["content"]] = token["id"]
    # A merge is "a b", or in newer files ["a", "b"].
    merges = facts["model"]["merges"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    pre_tokenizer = facts["pre_tokenizer"]
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    # GPT-2's own file leaves use_regex out. The offsets change no id.
    steps = [{"use_regex": True} | step | {"trim_offsets": None} for step in steps]
    return vocab, merges, facts["normalizer"], steps


def load_hf_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a model in a directory. UserError if no vocabulary of ours would give its
    ids.

    The published TinyStories models use GPT-2's own, with or without a tokenizer.json beside them.
    """
    path = directory / "tokenizer.json"
    if not path.exists():
        if read_json(directory / "config.json").get("vocab_size") == gpt2().vocab_size:
            return gpt2()
        raise UserError(f"{path}: missing, and the vocab_size in config.json is not GPT-2's")
    facts = read_json(path)
    # These errors mean that the file has another layout, or tokens that are not spelled by bytes.
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        ids = facts["model"]["vocab"]
        tokens = sorted(ids.keys() - {END_OF_TEXT}, key=ids.get)
        for pattern in (GPT2_PATTERN, BPE_PATTERN):
            tokenizer = Tokenizer(tokens, pattern)
            if essentials(facts) == essentials(tokenizer_json(tokenizer)):
                return tokenizer
    raise UserError(
        f"{path}: not byte-level BPE as GPT-2's, or as prepare.py learns it; no other can be read"
    )


def save_hf_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the tokenizer.json and tokenizer_config.json that transformers.AutoTokenizer loads.

    It gives the same ids as ours, except that it takes a literal "<|endoftext|>" in a text for the
    special token.
    """
    settings = {
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        # This class uses tokenizer.json as is.
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Otherwise "Oh ." comes back as "Oh."
        "clean_up_tokenization_spaces": False,
    }
    write_json(directory / "tokenizer.json", tokenizer_json(tokenizer))
    write_json(directory / "tokenizer_config.json", settings)
