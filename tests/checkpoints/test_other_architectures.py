"""A model of another architecture that transformers cannot load is one line; how it writes is in
tests/sweeps/test_bits_per_byte.py."""

import pytest
from tokenizer_texts import TEXT, count_tokens

from nanostories.checkpoints.huggingface import save_hf_tokenizer
from nanostories.checkpoints.other_architectures import load_other
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import cut

transformers = pytest.importorskip("transformers")


def cut_weights(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def change_shape(directory):
    path = directory / "config.json"
    path.write_text(path.read_text().replace('"hidden_size": 16', '"hidden_size": 32'))


def break_tokenizer(directory):
    (directory / "tokenizer.json").write_text("{")


@pytest.mark.parametrize("damage", [cut_weights, change_shape, break_tokenizer])
def test_what_transformers_cannot_load_is_one_line(damage, tmp_path):
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    save_hf_tokenizer(cut(count_tokens(TEXT), 300), tmp_path)
    model, _ = load_other(str(tmp_path))
    assert model.config.n_embd == 16
    damage(tmp_path)
    with pytest.raises(UserError, match="transformers cannot load it: .") as error:
        load_other(str(tmp_path))
    assert "\n" not in str(error.value)
