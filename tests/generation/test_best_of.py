"""sample.py --best_of: the draw with all the words is kept, equal to choosing by hand."""

from random_models import TOKENIZER, model_to_probe, save_run
from sample_fixtures import rows_of

import instruct
from nanostories.corpus.word_forms import uses_word
from nanostories.generation import best_of
from nanostories.generation.backends import LocalBackend
from nanostories.generation.prompts import Sampling
from nanostories.generation.token_likelihoods import log_likelihoods

HEADER = "Words: frog, run\nFeatures: Dialogue\nStory:"
BACKEND = LocalBackend(model_to_probe(), TOKENIZER, [TOKENIZER.end_of_text])


def chosen(texts: list[str], header: str = HEADER) -> tuple[str, dict]:
    draws = [((0, i), text, True) for i, text in enumerate(texts)]
    text, _, facts = best_of.choose(BACKEND, header, draws)
    return text, facts


def test_the_words_come_first_then_what_else_is_asked_for():
    words = " The frogs ran."
    both = ' "Hi," said the frog and ran.'
    dialogue = ' "Hi," said the frog.'
    assert chosen([dialogue, " A dog.", words]) == (words, dict(first=dialogue, all_words=1))
    assert chosen([words, both, dialogue]) == (both, dict(first=words, all_words=2))
    assert chosen([" A dog.", dialogue]) == (dialogue, dict(first=" A dog.", all_words=0))
    sentence = "Random sentence: A dog ran.\nStory:"
    assert chosen([both, " So: a cat. A dog\nran."], sentence)[0] == " So: a cat. A dog\nran."


def mean_likelihood(text: str, header: str) -> float:
    ids = TOKENIZER.encode(text) + [TOKENIZER.end_of_text]
    (nats,) = log_likelihoods(BACKEND, [(BACKEND.encode(header), ids)])
    return nats.mean().item()


def test_it_equals_a_choice_among_the_same_draws_by_hand():
    """Of those with equally many words, the likeliest per token."""
    header = "Words: a\nStory:"
    prompts = {(i, 0): header for i in range(3)}
    sampling = Sampling(max_new_tokens=8, seed=3, best_of=4)
    single = {(i, j): header for i in range(3) for j in range(4)}
    draws = {key: text for key, text, _ in BACKEND.complete(single, sampling)}
    found = list(best_of.complete(BACKEND, prompts, sampling))
    assert sorted(key for key, *_ in found) == sorted(prompts)
    for (i, _), text, _, facts in found:
        own = [draws[i, j] for j in range(4)]
        assert len(set(own)) == 4 and facts["first"] == own[0]
        ranks = {draw: (uses_word(draw, "a"), mean_likelihood(draw, header)) for draw in own}
        assert text == max(own, key=ranks.get)


def test_single_and_best_draws_are_side_by_side(sample_py, tmp_path, command_line):
    save_run(tmp_path / "out" / "tiny", model_to_probe())
    asked = "--words a --max_new_tokens 20 --n 6 --best_of 4"
    assert sample_py(asked)[1].out.count("of 4 draws had all the words]") == 6
    assert sample_py(f"{asked} --out out/tiny --temperature 2")[0] == 0
    place = tmp_path / "out" / "tiny" / "temperature-2-best_of-4"
    rows = rows_of(place / "samples" / "prompt.jsonl")
    assert rows[0]["best_of"] == 4 and rows[0]["prompt"] == "Words: a\nStory:"
    assert rows[0]["instruction"] == dict(words=["a"])
    # a word may be in the text that is kept, if and only if any draw has it
    for row in rows:
        assert bool(row["all_words"]) == uses_word(row["completion"], "a")
    printed = command_line(instruct, tmp_path)("out/tiny")[1].out
    assert "temperature-2-best_of-4, prompt, single draws" in printed
