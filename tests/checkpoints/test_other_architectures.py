"""A model of another architecture that transformers cannot load is one line; how it writes is in
tests/sweeps/test_bits_per_byte.py."""

import pytest
from tokenizer_texts import TEXT, count_tokens

from nanostories.checkpoints.huggingface import save_hf_tokenizer
from nanostories.checkpoints.other_architectures import load_other
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import cut

transformers = pytest.importorskip("transformers")


def test_what_transformers_cannot_load_is_one_line(tmp_path):
    shape = dict(vocab_size=300, hidden_size=16, intermediate_size=32, max_position_embeddings=64)
    config = transformers.LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **shape)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    save_hf_tokenizer(cut(count_tokens(TEXT), 300), tmp_path)
    model, _ = load_other(str(tmp_path))
    assert model.config.n_embd == 16
    for name, old, new in [
        ("tokenizer.json", b"{", b""),
        ("config.json", b'"hidden_size": 16', b'"hidden_size": 32'),
        ("model.safetensors", b"model.norm", b""),
    ]:
        path = tmp_path / name
        good = path.read_bytes()
        path.write_bytes(good.replace(old, new, 1))
        with pytest.raises(UserError, match="transformers cannot load it: .") as error:
            load_other(str(tmp_path))
        assert "\n" not in str(error.value)
        path.write_bytes(good)
