"""
GPT-Neo, as in TinyStories: the whole model in one file.

Pre-LayerNorm transformer with learned positions. Odd layers see only the last 256 tokens, attention logits are not
scaled by 1/sqrt(d), q, k and v have no bias, and the head is tied to the embedding. The reference is
transformers.GPTNeoForCausalLM; tests/test_model.py holds this file against it. GPT-2 is the same model with the scale,
the bias and no window: published weights of both can be read, and ours be written for transformers (tests/test_hf.py).

>>> model = GPTNeo(GPTNeoConfig(**PRESETS["8M"]))
>>> logits, loss = model(tokens, targets)
>>> model = GPTNeo.from_hf("roneneldan/TinyStories-1M")  # or "gpt2", or a directory that transformers wrote

$ python model.py out/demo exported/                     # a run's best model, for transformers to load
"""

import argparse
import math
import pickle
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
import torch.nn as nn

from attention import causal_attention
from files import read_json, write_json, write_whole
from hub import WEIGHTS, model_directory
from loss import head_loss
from tokenizer import END_OF_TEXT, Tokenizer

CHECKPOINT_FORMAT = 1

# The seven published models, https://huggingface.co/roneneldan: all with 16 heads.
PRESETS = {
    "1M": dict(n_embd=64, n_layer=8, n_head=16),
    "3M": dict(n_embd=128, n_layer=8, n_head=16),
    "8M": dict(n_embd=256, n_layer=8, n_head=16),
    "28M": dict(n_embd=512, n_layer=8, n_head=16),
    "33M": dict(n_embd=768, n_layer=4, n_head=16),
    "1L-21M": dict(n_embd=1024, n_layer=1, n_head=16),
    "2L-33M": dict(n_embd=1024, n_layer=2, n_head=16),
}


@dataclass(frozen=True)
class GPTNeoConfig:
    vocab_size: int = 10_000
    block_size: int = 512  # longest sequence, in tokens
    n_layer: int = 8
    n_head: int = 16
    n_embd: int = 256
    window_size: int = 256  # how far back the odd ("local") layers see, the current token included
    dropout: float = 0.0  # on the embedding, the attention weights and both residual branches
    # GPT-2 is this model with both of these, and a window as wide as the block
    scale_attention: bool = False  # attention logits times 1/sqrt(d)
    qkv_bias: bool = False

    def __post_init__(self):
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd", "window_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd ({self.n_embd}) must be a multiple of n_head ({self.n_head})")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), not {self.dropout}")

    def window(self, layer: int) -> int:
        """How far back `layer` sees: local and global attention alternate, global first."""
        return self.window_size if layer % 2 else self.block_size


# How queries meet keys: (layer, q, k, v) -> output, all (B, T, H, D). Training, generation with a cache and whoever
# wants to look at the attention weights bring their own; the rest of the model is the same for all of them.
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def gelu_new(x: torch.Tensor) -> torch.Tensor:
    """GELU with tanh: F.gelu(x, approximate="tanh"), in a form that compiles to half the time on a CPU."""
    return x * torch.sigmoid(2 * (2 / math.pi) ** 0.5 * (x + 0.044715 * x * x * x))


class Block(nn.Module):
    def __init__(self, config: GPTNeoConfig):
        super().__init__()
        self.n_head = config.n_head
        self.scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attention else None
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.qkv_bias)
        self.attention_out = nn.Linear(config.n_embd, config.n_embd)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp_in = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.mlp_out = nn.Linear(4 * config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, layer: int, attend: Attend) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(B, T, 3, self.n_head, C // self.n_head).unbind(2)  # (B, T, H, D) each
        if self.scale:  # here, so that whoever attends need not know
            q = q * self.scale
        y = attend(layer, q, k, v).flatten(2)  # (B, T, H, D) -> (B, T, C)
        x = x + self.dropout(self.attention_out(y))
        return x + self.dropout(self.mlp_out(gelu_new(self.mlp_in(self.ln_2(x)))))


class GPTNeo(nn.Module):
    def __init__(self, config: GPTNeoConfig):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head.weight = self.wte.weight
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module: nn.Module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    @torch.no_grad()
    def init_copying(self, gain: float):
        """Start every head as a copier: whatever it looks at, it makes likelier as the next token.

        The value and output matrices of all heads of a layer together become `gain` times the identity; as the head is
        tied to the embedding, what was read in is what is written out. Left to chance, it takes millions of tokens
        until a small model brings back the name of its hero. Not in the publication.
        """
        C = self.config.n_embd
        for block in self.blocks:
            values = nn.init.orthogonal_(torch.empty(C, C), gain=gain**0.5)
            block.qkv.weight[2 * C :] = values
            block.attention_out.weight.copy_(values.T)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None):
        """tokens (B, T) int64 -> logits (B, T, vocab_size), None; with targets (B, T): None, loss.

        The loss is the mean, in nats, over targets that are not -100. The logits are then never held all together.
        """
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.hidden(tokens, positions, self.attend)
        if targets is None:
            return self.head(x), None
        return None, head_loss(x.flatten(0, 1), self.head.weight, targets.flatten())

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return causal_attention(q, k, v, self.config.window(layer), self.config.dropout if self.training else 0.0)

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """The residual stream after the last LayerNorm, (B, T, C). positions: (T,) or (B, T)."""
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, attend)
        return self.ln_f(x)

    @classmethod
    @torch.no_grad()
    def from_hf(cls, path_or_id: str | Path) -> "GPTNeo":
        """GPT-Neo or GPT-2 in fp32, from a directory that transformers wrote or from the hub. In eval mode.

        ValueError names the file and what is wrong with it.
        """
        directory = model_directory(path_or_id)
        config, model_type = config_from_hf(directory / "config.json")
        with torch.device("meta"):  # shapes first: nothing is drawn or allocated before they are known to fit
            model = cls(config)
        weights = read_weights(directory, model.hf_tensors(model_type))
        model.to_empty(device="cpu")
        model.head.weight = model.wte.weight  # to_empty untied them
        for name, tensor in model.hf_tensors(model_type).items():
            tensor.copy_(weights[name])
        return model.eval()

    @torch.no_grad()
    def to_hf(self, directory: str | Path, tokenizer: Tokenizer, prompt_prefix: str = END_OF_TEXT) -> None:
        """Write config.json, model.safetensors and the tokenizer for transformers' AutoModelForCausalLM to load.

        `prompt_prefix` is noted in config.json: our models are trained, and so must be prompted, with an end of text
        before every story; the published ones are not.
        """
        directory = Path(directory)
        if tokenizer.vocab_size != self.config.vocab_size:
            sizes = f"{self.config.vocab_size} ids, and the tokenizer {tokenizer.vocab_size}"
            raise ValueError(f"{directory}: not written; the model has {sizes}: they do not belong together")
        facts = config_to_hf(self.config)
        facts |= dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.end_of_text)
        tensors = {
            f"transformer.{name}": tensor.to("cpu", torch.float32).contiguous()
            for name, tensor in self.hf_tensors(facts["model_type"]).items()
        }
        directory.mkdir(parents=True, exist_ok=True)
        tokenizer.to_hf(directory)
        write_json(directory / "config.json", facts | {"prompt_prefix": prompt_prefix})
        write_whole(directory / "model.safetensors", safetensors.torch.save(tensors, metadata={"format": "pt"}))

    def hf_tensors(self, model_type: str) -> dict[str, torch.Tensor]:
        """Our weights by their names in transformers, as views: what is copied into them is loaded.

        GPT-2 keeps q, k and v in one, as we do, and every matrix transposed.
        """
        gpt2 = model_type == "gpt2"
        modules, tensors = {"wte": self.wte, "wpe": self.wpe, "ln_f": self.ln_f}, {}
        for i, block in enumerate(self.blocks):
            modules |= {f"h.{i}.ln_1": block.ln_1, f"h.{i}.ln_2": block.ln_2}
            modules |= {f"h.{i}.mlp.c_fc": block.mlp_in, f"h.{i}.mlp.c_proj": block.mlp_out}
            attention = f"h.{i}.attn" if gpt2 else f"h.{i}.attn.attention"
            modules[f"{attention}.c_proj" if gpt2 else f"{attention}.out_proj"] = block.attention_out
            if gpt2:
                modules[f"{attention}.c_attn"] = block.qkv
            else:
                names = [f"{attention}.{name}_proj.weight" for name in "qkv"]
                tensors |= zip(names, block.qkv.weight.chunk(3))
        for name, module in modules.items():
            transposed = gpt2 and isinstance(module, nn.Linear)
            tensors[f"{name}.weight"] = module.weight.T if transposed else module.weight
            if getattr(module, "bias", None) is not None:
                tensors[f"{name}.bias"] = module.bias
        return tensors

    def num_params(self) -> int:
        """All parameters; the tied head counts once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self, T: int) -> int:
        """Floating-point operations of forward and backward for one token of a sequence of T.

        Counted, not estimated: each matrix product of m x k by k x n is 2mkn, the backward pass does two for each
        one of the forward pass, and a token attends to what the causal mask and the window leave it, on average.
        """
        config = self.config
        linear = sum(m.weight.numel() for m in self.modules() if isinstance(m, nn.Linear))
        attention = 0.0
        for layer in range(config.n_layer):
            window = min(config.window(layer), T)
            keys = window * (T - window) + window * (window + 1) / 2  # pairs (query, key) that the mask lets through
            attention += 2 * config.n_embd * keys / T  # q times k, and the weights times v
        return round(3 * 2 * (linear + attention))


# What torch.load raises where bytes are missing or wrong, found by damaging files at random.
DAMAGE = (RuntimeError, EOFError, OSError, LookupError, ValueError, TypeError, AttributeError, AssertionError)
DAMAGE += (struct.error, pickle.UnpicklingError)


def load_torch(path: Path, otherwise: str) -> object:
    """What torch.save wrote, of plain tensors and types; code that hides in it is refused, never run."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGE as error:
        raise ValueError(f"{path}: {otherwise}") from error


def load_checkpoint(path: str | Path) -> dict:
    """A checkpoint written by train.py, as a dict of plain tensors and types; of a run (a directory) its best.

    ValueError names what is wrong.
    """
    path = Path(path)
    if path.is_dir():
        path = path / ("best.pt" if (path / "best.pt").exists() else "ckpt.pt")
    if not path.is_file():
        raise ValueError(f"{path}: no such checkpoint (train.py writes it at its first evaluation)")
    checkpoint = load_torch(path, "not a readable checkpoint (cut short, or not written by train.py)")
    if not isinstance(checkpoint, dict) or "format" not in checkpoint:
        raise ValueError(f"{path}: not a checkpoint of this project")
    if checkpoint["format"] != CHECKPOINT_FORMAT:
        raise ValueError(f"{path}: format {checkpoint['format']}, but this version reads {CHECKPOINT_FORMAT}")
    return checkpoint


def from_checkpoint(checkpoint: dict, model_class: type[GPTNeo] = GPTNeo) -> GPTNeo:
    """ValueError if it is of a model with other parts."""
    try:
        model = model_class(GPTNeoConfig(**checkpoint["model_config"]))
        model.load_state_dict(checkpoint["model"])
    except (TypeError, RuntimeError) as error:
        raise ValueError("the checkpoint's settings or weights are not those of this version's model") from error
    return model.eval()


# ---- The files of transformers ----

# What its config.json calls our settings, and what tells GPT-Neo and GPT-2 apart. The same names are read and written.
HF_SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")
HF_KEYS = {
    "gpt_neo": dict(
        architecture="GPTNeoForCausalLM",
        sizes=("vocab_size", "max_position_embeddings", "num_layers", "num_heads", "hidden_size"),
        mlp="intermediate_size",
        dropouts=("resid_dropout", "embed_dropout", "attention_dropout"),
    ),
    "gpt2": dict(
        architecture="GPT2LMHeadModel",
        sizes=("vocab_size", "n_positions", "n_layer", "n_head", "n_embd"),
        mlp="n_inner",
        dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    ),
}
# What old versions of transformers saved beside the weights: the causal mask, and what stands for minus infinity.
HF_MASKS = re.compile(r"h\.\d+\.attn\.(attention\.)?(masked_)?bias")


def config_from_hf(path: Path) -> tuple[GPTNeoConfig, str]:
    """What a config.json says, as our config, and its model_type. ValueError names what this model cannot be."""
    facts = read_json(path)
    model_type = str(facts.get("model_type"))
    if model_type not in HF_KEYS:
        raise ValueError(f"{path}: model_type is {model_type}; only gpt_neo and gpt2 can be read")
    keys = HF_KEYS[model_type]

    def whole_number(key: str) -> int:
        if type(facts.get(key)) is not int:
            raise ValueError(f"{path}: {key} is {facts.get(key)!r}; it must be a whole number")
        return facts[key]

    sizes = {ours: whole_number(theirs) for ours, theirs in zip(HF_SIZES, keys["sizes"])}
    for key, allowed in {  # where a key is missing, transformers assumes the first
        "architectures": [None, [keys["architecture"]]],
        "activation_function": ["gelu_new"],
        "layer_norm_epsilon": [1e-5],
        keys["mlp"]: [None, 4 * sizes["n_embd"]],
        "tie_word_embeddings": [True],
        "scale_attn_by_inverse_layer_idx": [False],
        "add_cross_attention": [False],
    }.items():
        if facts.get(key, allowed[0]) not in allowed:
            raise ValueError(f"{path}: {key} is {facts[key]!r}; this model has {allowed[-1]!r}")
    n_layer, window_size = sizes["n_layer"], sizes["block_size"]
    if n_layer > 1000:
        raise ValueError(f"{path}: {n_layer:,} layers; no model of this kind has so many")
    if model_type == "gpt_neo":
        layers = attention_layers(facts)
        if layers == ["local" if i % 2 else "global" for i in range(n_layer)]:
            window_size = whole_number("window_size")
        elif layers != ["global"] * n_layer:
            known = "all layers must be global, or global and local by turns"
            raise ValueError(f"{path}: attention_types is {facts.get('attention_types')!r}; {known}")
    own = {}
    if model_type == "gpt2":
        own = dict(scale_attention=facts.get("scale_attn_weights", True), qkv_bias=True)
    # One figure of ours stands for three dropouts; where they differ, that of the residual branches does.
    dropout = facts.get(keys["dropouts"][0], 0.0)
    try:
        return GPTNeoConfig(**sizes, window_size=window_size, dropout=dropout, **own), model_type
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def attention_layers(facts: dict) -> list[str]:
    """[[["global", "local"], 2]] -> global, local, global, local; nothing if it is of another form."""
    try:
        return [kind for kinds, times in facts["attention_types"] for _ in range(min(times, 1000)) for kind in kinds]
    except (KeyError, TypeError, ValueError):
        return []


def config_to_hf(config: GPTNeoConfig) -> dict:
    """config.json for transformers: GPT-2's if q, k and v have a bias, else GPT-Neo's. ValueError if neither fits."""
    n_layer, model_type = config.n_layer, "gpt2" if config.qkv_bias else "gpt_neo"
    all_global = all(config.window(layer) >= config.block_size for layer in range(n_layer))
    if config.scale_attention and not config.qkv_bias or config.qkv_bias and not all_global:
        needs = "scale_attention needs qkv_bias, and qkv_bias a window_size of block_size"
        raise ValueError(f"neither GPT-Neo nor GPT-2 can hold this model: {needs}")
    keys = HF_KEYS[model_type]
    facts = {"model_type": model_type, "architectures": [keys["architecture"]]}
    facts |= {theirs: getattr(config, ours) for ours, theirs in zip(HF_SIZES, keys["sizes"])}
    facts |= dict.fromkeys(keys["dropouts"], config.dropout)
    facts |= {keys["mlp"]: None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
    if model_type == "gpt2":
        facts["scale_attn_weights"] = config.scale_attention
    else:
        pattern = [[["global", "local"], n_layer // 2], [["global"], n_layer % 2]]
        facts["attention_types"] = [[kinds, times] for kinds, times in pattern if times]
        facts["window_size"] = config.window_size
    return facts | {"tie_word_embeddings": True}


def read_weights(directory: Path, expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a directory that transformers wrote, by name without the prefix "transformer.".

    ValueError names the first that is missing, unknown, or not of the shape that `expected` has.
    """
    path = next((directory / name for name in WEIGHTS if (directory / name).exists()), None)
    if path is None:
        raise ValueError(f"{directory}: holds neither {' nor '.join(WEIGHTS)}")
    if path.suffix == ".bin":
        weights = load_torch(path, "not a readable file of weights (cut short, or with code in it)")
    else:
        try:
            weights = safetensors.torch.load_file(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise ValueError(f"{path}: not a readable file of weights, perhaps cut short ({error})") from None
    if not isinstance(weights, dict) or not all(isinstance(weight, torch.Tensor) for weight in weights.values()):
        raise ValueError(f"{path}: holds something else than named tensors")
    weights = {str(name).removeprefix("transformer."): weight for name, weight in weights.items()}
    weights = {name: weight for name, weight in weights.items() if not HF_MASKS.fullmatch(name)}
    head = weights.pop("lm_head.weight", None)
    if missing := expected.keys() - weights.keys():
        raise ValueError(f"{path}: lacks {min(missing)}, which config.json asks for")
    if unknown := weights.keys() - expected.keys():
        raise ValueError(f"{path}: has {min(unknown)}, which is no part of the model that config.json describes")
    for name, tensor in expected.items():
        weight = weights[name]
        if weight.shape != tensor.shape or not weight.is_floating_point():
            found = f"{weight.dtype} of {tuple(weight.shape)}".removeprefix("torch.")
            raise ValueError(f"{path}: {name} is {found}; by config.json, floats of {tuple(tensor.shape)}")
    wte = weights["wte.weight"]
    if head is not None and not (head.shape == wte.shape and torch.equal(head.float(), wte.float())):
        raise ValueError(f"{path}: lm_head.weight differs from wte.weight, and this model ties one to the other")
    return weights


def main():
    parser = argparse.ArgumentParser(description="Export a run's best model for transformers to load.")
    parser.add_argument("run", type=Path, help="directory of the run, or a checkpoint")
    parser.add_argument("directory", type=Path, help="where to write config.json, model.safetensors and the tokenizer")
    args = parser.parse_args()
    try:
        checkpoint = load_checkpoint(args.run)
        if (kind := checkpoint.get("model_class", "gptneo")) != "gptneo":
            raise ValueError(f"{args.run}: transformers has no model like the {kind}")
        from_checkpoint(checkpoint).to_hf(args.directory, Tokenizer(checkpoint["gpt2_ids"]))
    except (ValueError, OSError) as error:
        sys.exit(f"model.py: {error}")
    print(f"wrote {args.directory}; load it with transformers.AutoModelForCausalLM.from_pretrained('{args.directory}')")


if __name__ == "__main__":
    main()
