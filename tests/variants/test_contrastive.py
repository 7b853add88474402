"""The contrastive objective: what is shuffled, and what the loss is."""

import itertools

import pytest
import torch
from random_models import TOKENIZER
from tokenizer_texts import SCRIPTS

from nanostories.corpus.tokenizer import learn_bpe
from nanostories.variants.contrastive import sentence_ends, shuffle_sentences, with_contrast

SENTENCES = ["It ran.", ' "Sit!"', " The cat, too!", " No one came."]  # with its closing quote


def test_sentences_change_places_within_their_story():
    """In two rows: the end of a story, two whole ones."""
    stories = ["".join(SENTENCES), "One sentence."]
    end_of_text = TOKENIZER.end_of_text
    rows = [TOKENIZER.encode_stories([f"cut off{end}", *stories]).tolist() for end in ".!"]
    tokens = torch.tensor(rows)
    ends = sentence_ends(TOKENIZER)
    orders = set()
    for _ in range(200):
        result = shuffle_sentences(tokens, ends, end_of_text)
        assert torch.equal(result == end_of_text, tokens == end_of_text)
        first, story, *others = TOKENIZER.decode(result[0].tolist()).split("<|endoftext|>")
        assert [first, *others] == ["cut off.", "One sentence.", ""]
        orders.add(story)
    assert orders == {"".join(order) for order in itertools.permutations(SENTENCES)}


def test_sentences_end_in_other_scripts():
    tokenizer = learn_bpe(SCRIPTS, 500)
    for text, mark in zip(SCRIPTS[::2], "।."):
        ids = tokenizer.encode(text)
        assert sentence_ends(tokenizer)[ids].sum() == text.count(mark)


def objective_of(loss_of):
    """0 begins a story, 1 ends a sentence."""
    return with_contrast(loss_of, torch.arange(400) == 1, 0, 5.0)


def word_story(first_word: int) -> list[int]:
    """A story of four sentences, of one word and a mark each."""
    story = [0]
    for word in range(first_word, first_word + 4):
        story += [word, 1]
    return story


@pytest.mark.parametrize("n_windows, n_drawn", [(1, 1), (12, 8)])
def test_as_published_a_third_of_the_stories_is_shuffled_and_read_alone(n_windows, n_drawn):
    """Two stories in each window: one of 2 is drawn, 8 of 24 fill four windows."""
    stories = [word_story(word) for word in range(2, 2 + 8 * n_windows, 4)]
    tokens = torch.tensor(stories).view(n_windows, 18)
    batches = []

    def loss_of(*batch):
        batches.append(batch)
        return torch.tensor(len(batches))

    all_drawn = set()
    first_words = set()
    for _ in range(30):
        batches.clear()
        loss = objective_of(loss_of)(tokens[:, :-1], tokens[:, 1:])
        (inputs, targets), (x, y) = batches
        assert loss == 1 + 5 / (2 + 0.01)
        assert inputs.equal(tokens[:, :-1]) and targets.equal(tokens[:, 1:])

        drawn = []
        for story in torch.cat([x[:, :1], y], dim=1).view(-1, 9)[:n_drawn].tolist():
            number = (story[1] - 2) // 4
            assert story[0] == 0 and sorted(story) == sorted(stories[number])
            drawn.append(number)
            first_words.add(story[1] % 4)
        assert len(set(drawn)) == n_drawn
        assert (y >= 0).sum() == 9 * n_drawn - len(y)  # no other is a target
        all_drawn.update(drawn)
    assert all_drawn == set(range(len(stories))) and len(first_words) == 4


def test_what_is_past_the_end_of_the_corpus_is_no_story():
    """Inputs there are padding (here 399), which nothing may be trained to write."""
    seen = []

    def loss_of(inputs, targets):
        seen.append(targets)
        return (targets >= 0).any().float()

    objective = objective_of(loss_of)
    tokens = torch.tensor([[*word_story(10), 399, 399, 399, 399]])
    for _ in range(20):
        objective(tokens[:, :-1], tokens[:, 1:].where(tokens[:, 1:] != 399, -100))
    assert not any((targets == 399).any() for targets in seen)
    n_targets = [(targets >= 0).sum().item() for targets in seen[1::2]]  # of drawn stories
    assert max(n_targets) <= len(word_story(10))  # not of the empty ones


@pytest.mark.parametrize(
    "tokens, penalties",
    [
        # Of the first story the window cut all but its last token, which is no target.
        ([5, *word_story(10)], [0, 5 / 1.01]),
        # Where a window reaches past the end, nothing is a story: the only one is always drawn.
        ([*word_story(10), -100], [5 / 1.01]),
    ],
)
def test_a_story_without_targets_adds_nothing(tokens, penalties):
    """Had it counted, the loss would have jumped by 5 / 0.01."""
    objective = objective_of(lambda x, y: (y >= 0).any().float())
    tokens = torch.tensor([tokens])
    losses = {objective(tokens[:, :-1], tokens[:, 1:]).item() - 1 for _ in range(20)}
    assert sorted(losses) == pytest.approx(penalties)
