"""Models to and from the files of transformers, which is the reference both ways; broken files.
(Those of the hub: tests/sweeps/test_lists.py.)"""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from random_models import random_model, randomize
from tokenizer_texts import TEXT, count_tokens

from nanostories.checkpoints.huggingface import load_hf, save_hf
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import END_OF_TEXT, Tokenizer, cut

transformers = pytest.importorskip("transformers")

VOCAB_SIZE = 300
BLOCK_SIZE = 40
SIZES = dict(vocab_size=VOCAB_SIZE, block_size=BLOCK_SIZE)
ONE_LAYER = SIZES | dict(n_layer=1, n_head=2, n_embd=16, window_size=8)
GPT2 = dict(scale_attention=True, qkv_bias=True, window_size=BLOCK_SIZE)
SHAPES = {
    "odd number of layers, one head": dict(n_layer=3, n_head=1, n_embd=20, window_size=16),
    "GPT-2, not scaled": dict(n_layer=2) | GPT2 | dict(scale_attention=False),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return cut(count_tokens(TEXT), VOCAB_SIZE)


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(VOCAB_SIZE, (3, BLOCK_SIZE), generator=torch.Generator().manual_seed(0))


def in_transformers(directory: Path) -> torch.nn.Module:
    """The directory as transformers loads it, which must find every tensor that it wants, and no
    other."""
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, output_loading_info=True
    )
    assert not any(info.values()), info
    assert theirs.dtype == torch.float32
    return theirs.eval()


def save(directory: Path, config: dict, weights: dict, name: str = "model.safetensors") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if name.endswith(".bin"):
        torch.save(weights, directory / name)
    else:
        safetensors.torch.save_file(weights, directory / name)
    return directory


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@torch.no_grad()
def test_ours_goes_out_and_comes_back(shape, tokenizer, tokens, tmp_path):
    ours = random_model(**SIZES | shape, dropout=0.1)
    save_hf(ours, tmp_path / "out", tokenizer)
    theirs = in_transformers(tmp_path / "out")
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens)[0], atol=1e-4, rtol=0)
    assert theirs.config.bos_token_id == theirs.config.eos_token_id == tokenizer.end_of_text
    assert theirs.config.prompt_prefix == END_OF_TEXT
    assert theirs.transformer.drop.p == 0.1
    again = load_hf(tmp_path / "out")
    assert again.config == ours.config and not again.training
    assert again.head.weight is again.wte.weight
    torch.testing.assert_close(again.state_dict(), ours.state_dict(), atol=0, rtol=0)


NEO_SHAPE = dict(
    max_position_embeddings=BLOCK_SIZE,
    hidden_size=48,
    num_layers=4,
    num_heads=8,
    attention_types=[[["global", "local"], 2]],
    window_size=7,
)
GPT2_SHAPE = dict(n_positions=BLOCK_SIZE, n_embd=48, n_layer=4, n_head=4)
IDS = dict(vocab_size=VOCAB_SIZE, bos_token_id=0, eos_token_id=0)


@pytest.mark.parametrize("name", ["gpt_neo", "gpt2"])
@torch.no_grad()
def test_theirs_comes_in_however_it_was_saved(name, tokens, tmp_path):
    shape = NEO_SHAPE if name == "gpt_neo" else GPT2_SHAPE
    config = transformers.AutoConfig.for_model(name, **shape, **IDS)
    theirs = randomize(transformers.AutoModelForCausalLM.from_config(config))
    theirs.save_pretrained(tmp_path / "theirs")
    directories = [tmp_path / "theirs"]
    logits = theirs(tokens).logits
    config = theirs.config.to_dict()
    config.pop("scale_attn_weights", None)  # as in the first files of gpt2
    weights = dict(theirs.state_dict())
    # Old versions saved the masks as well; see the published TinyStories models and the first files
    # of gpt2.
    attention = "attn.attention" if name == "gpt_neo" else "attn"
    with_masks = weights.copy()
    for layer in range(4):
        for mask in ("bias", "masked_bias"):
            with_masks[f"transformer.h.{layer}.{attention}.{mask}"] = torch.ones(1)
    no_prefix = {name.removeprefix("transformer."): w for name, w in with_masks.items()}
    no_prefix.pop("lm_head.weight")
    for state, file_name in ((with_masks, "pytorch_model.bin"), (no_prefix, "model.safetensors")):
        directories.append(save(tmp_path / file_name, config, state, file_name))
    for directory in directories:
        torch.testing.assert_close(load_hf(directory)(tokens)[0], logits, atol=1e-4, rtol=0)


@pytest.fixture
def parts(tokenizer, tmp_path) -> tuple[dict, dict]:
    """config.json and the weights of a good model, to be damaged."""
    save_hf(random_model(**ONE_LAYER), tmp_path / "good", tokenizer)
    config = json.loads((tmp_path / "good" / "config.json").read_text())
    return config, safetensors.torch.load_file(tmp_path / "good" / "model.safetensors")


def refusal(directory: Path) -> str:
    with pytest.raises(UserError) as error:
        load_hf(directory)
    text = str(error.value)
    assert text.startswith(str(directory)) and "\n" not in text, text
    return text.removeprefix(f"{directory}/")


def test_a_setting_that_model_py_or_the_weights_do_not_have_is_named(parts, tmp_path):
    config, weights = parts
    for changes, wrong in [
        (dict(model_type="llama"), "model_type"),
        (dict(layer_norm_epsilon=1e-6), "layer_norm_epsilon"),
        (dict(attention_types=None), "attention_types"),
        (dict(attention_types=[[["global"], 1]], num_layers=2), "attention_types"),
        (dict(num_layers="1"), "num_layers"),
        (dict(vocab_size=10**12), "wte.weight"),
        (dict(num_layers=3, attention_types=[[["global", "local", "global"], 1]]), "h.1."),
    ]:
        assert wrong in refusal(save(tmp_path, config | changes, weights)), changes


def test_weights_that_do_not_fit(parts, tmp_path):
    config, weights = parts
    for name, weight in {
        "transformer.h.0.ln_1.bias": torch.ones(17),
        "score.weight": torch.ones(2),
        "lm_head.weight": weights["transformer.wte.weight"] + 1e-3,
    }.items():
        message = refusal(save(tmp_path / "x", config, weights | {name: weight}))
        assert message.startswith(f"model.safetensors: {name.removeprefix('transformer.')} ")
    path = tmp_path / "x" / "model.safetensors"
    path.write_bytes(safetensors.torch.save(weights)[:-1])
    assert "not a readable weights file" in refusal(tmp_path / "x")
    path.unlink()
    assert "holds neither" in refusal(tmp_path / "x")
    missing = dict(weights)
    del missing["transformer.h.0.ln_1.bias"]
    for state in (missing, [1, 2], {"transformer.wte.weight": 1}, {}):
        message = refusal(save(tmp_path / "x", config, state, "pytorch_model.bin"))
        assert message.startswith("pytorch_model.bin: ")
