"""The contrastive objective: what is shuffled, and what the loss is."""

import itertools

import pytest
import torch
from random_models import TOKENIZER
from tokenizer_texts import SCRIPTS

from model import GPTNeo, GPTNeoConfig
from nanostories.corpus.tokenizer import learn_bpe
from nanostories.variants.contrastive import Contrastive, sentence_ends, shuffle_sentences

SENTENCES = ["It ran.", ' "Sit!"', " The cat, too!", " No one came."]  # with its closing quote


def test_sentences_change_places_within_their_story():
    """In two rows: the end of a story, two whole ones."""
    stories = ["".join(SENTENCES), "One sentence."]
    end_of_text = TOKENIZER.end_of_text
    rows = [TOKENIZER.encode_stories([f"cut off{end}", *stories]).tolist() for end in ".!"]
    tokens = torch.tensor(rows)
    ends = sentence_ends(TOKENIZER)
    orders = set()
    torch.manual_seed(0)
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


@pytest.fixture
def model() -> GPTNeo:
    torch.manual_seed(0)
    return GPTNeo(GPTNeoConfig(vocab_size=400, block_size=64, n_layer=2, n_head=2, n_embd=16))


def objective_of(loss_of) -> Contrastive:
    """0 begins a story, 1 ends a sentence."""
    return Contrastive(loss_of, torch.arange(400) == 1, 0, 5.0)


def word_story(first_word: int) -> list[int]:
    """A story of four sentences, of one word and a mark each."""
    story = [0]
    for word in range(first_word, first_word + 4):
        story += [word, 1]
    return story


@pytest.mark.parametrize("n_windows, n_drawn", [(1, 1), (12, 8)])
def test_as_published_a_third_of_the_stories_is_shuffled_and_read_alone(n_windows, n_drawn, model):
    """Two stories in each window: one of 2 is drawn, 8 of 24 fill four windows."""
    stories = [word_story(word) for word in range(2, 2 + 8 * n_windows, 4)]
    tokens = torch.tensor(stories).view(n_windows, 18)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    batches = []

    def loss_of(*batch):
        batches.append(batch)
        return model(*batch)[1]

    objective = objective_of(loss_of)
    all_drawn = set()
    first_words = set()
    torch.manual_seed(0)
    for _ in range(30):
        loss = objective(inputs, targets)
        x, y = batches[-1]
        l_n = model(inputs, targets)[1]
        l_c = model(x, y)[1]
        torch.testing.assert_close(loss, l_n + 5 / (l_c + 0.01))

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


def losses_of(model: GPTNeo, tokens: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The plain loss, and that of the objective, drawn twenty times."""
    objective = objective_of(lambda x, y: model(x, y)[1])
    torch.manual_seed(0)
    losses = [objective(tokens[:, :-1], tokens[:, 1:]) for _ in range(20)]
    return model(tokens[:, :-1], tokens[:, 1:])[1], losses


def test_a_story_of_one_token_adds_nothing_where_it_is_the_only_one(model):
    """The window cut all but its last token, so it has no target. Had it counted, the loss would
    have jumped by 5 / 0.01."""
    plain, losses = losses_of(model, torch.tensor([[5, *word_story(10)]]))
    assert all(plain <= loss < plain + 5 for loss in losses)
    without_target = [loss for loss in losses if loss == plain]
    assert 0 < len(without_target) < 20
    gradients = [torch.autograd.grad(x, model.wte.weight) for x in (plain, without_target[0])]
    torch.testing.assert_close(*gradients)


def test_a_window_may_reach_past_the_end_of_the_corpus(model):
    """There targets are -100, and nothing is a story: the only one is always drawn."""
    plain, losses = losses_of(model, torch.tensor([[*word_story(10), -100]]))
    assert all(plain < loss < torch.inf for loss in losses)
