"""The sets of probes are balanced, the scores are those of transformers, and wrong lines are named."""

import collections
import re

import pytest
import torch
from conftest import ROOT
from models_to_probe import TOKENIZER, random_model
from tqdm import tqdm

from checkpoints.huggingface import save_hf
from corpus.tokenizer import Tokenizer, gpt2
from generation.backends import LocalBackend, Sampling, load_backend
from grading.probe_answers import SETS, Probe, Result, answer_probes, nats_per_byte, read_probes
from model import GPTNeoConfig

SEEDS = ROOT.parent / "shared" / "data" / "seed-prompts"
OURS = {path.stem: read_probes(path, path.stem) for path in SETS}
SILENT = tqdm(disable=True)

# The sets


@pytest.mark.parametrize("name", OURS)
def test_every_answer_is_right_as_often_as_each_of_its_rivals(name):
    """So a scorer that does not read the prompt, whatever it prefers, gets exactly one in each group right."""
    probes = OURS[name]
    assert len({probe.prompt for probe in probes}) == len(probes) >= 40
    right = collections.defaultdict(collections.Counter)
    for one in probes:
        right[frozenset(one.answers)][one.answers[0]] += 1
    for answers, counts in right.items():
        assert counts.keys() == answers and len(set(counts.values())) == 1, counts


def mentioned(one: Probe, which: int) -> str | None:
    """The answer that the prompt mentions first (0) or last (-1), if it mentions all."""
    found = {
        answer: [match.start() for match in re.finditer(rf"{re.escape(answer)}\b", " " + one.prompt)]
        for answer in one.answers
    }
    return (max if which else min)(found, key=lambda answer: found[answer][which]) if all(found.values()) else None


@pytest.mark.parametrize("which", (0, -1))
def test_neither_what_is_mentioned_first_nor_what_is_mentioned_last_is_right(which):
    context = [mentioned(one, which) == one.answers[0] for one in OURS["context"]]
    assert None not in [mentioned(one, which) for one in OURS["context"]]
    assert sum(context) * 2 == len(context)
    reasoning = [mentioned(one, which) == one.answers[0] for one in OURS["reasoning"] if mentioned(one, which)]
    assert len(reasoning) > 30 and 0.4 < sum(reasoning) / len(reasoning) < 0.6


def test_context_prompts_go_in_both_directions():
    """The other answer is right once where the two have changed places, and once where the question is another."""
    for one in OURS["context"]:
        others = [other for other in OURS["context"] if other.answers == one.answers[::-1]]
        same_words = [
            sorted(re.findall(r"\w+", one.prompt)) == sorted(re.findall(r"\w+", other.prompt)) for other in others
        ]
        assert sorted(same_words) == [False, True], one.prompt
        assert all(len(one.prompt.split()) == len(other.prompt.split()) for other in others)


@pytest.mark.parametrize("tokenizer", [gpt2(), TOKENIZER, Tokenizer(range(256))], ids=["GPT-2", "3,000", "bytes"])
def test_prompt_and_answer_have_the_same_ids_apart_and_together(tokenizer):
    for one in sum(OURS.values(), []):
        for answer in one.answers:
            together = tokenizer.encode(one.prompt + answer)
            assert tokenizer.encode(one.prompt) + tokenizer.encode(answer) == together


def test_the_prompts_are_our_own(real_stories):
    theirs = "".join(path.read_text() for path in SEEDS.glob("*.json"))
    for one in sum(OURS.values(), []):
        assert one.prompt not in theirs and not any(one.prompt in story for story in real_stories)


# The scores


def pairs_of(probes: list[Probe]) -> list[tuple[str, str]]:
    return [(one.prompt, answer) for one in probes for answer in one.answers]


@pytest.mark.parametrize("prefix", ["<|endoftext|>", ""])
def test_scores_are_those_of_transformers(tmp_path, prefix):
    transformers = pytest.importorskip("transformers")
    save_hf(random_model(), tmp_path, TOKENIZER, prompt_prefix=prefix)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    pairs = pairs_of(OURS["facts"])[::7] + [("Zoë went to the", " café in the zoo")]
    scores = nats_per_byte(load_backend(f"hf:{tmp_path}", batch_size=5), pairs, SILENT)
    for (prompt, answer), score in zip(pairs, scores):
        ids = tokenizer(prefix + prompt + answer, return_tensors="pt").input_ids
        n = len(tokenizer(answer).input_ids)
        with torch.no_grad():
            log_probabilities = theirs(ids).logits.log_softmax(-1)[0, -n - 1 : -1]
        expected = log_probabilities.gather(1, ids[0, -n:, None]).sum() / len(answer.encode())
        assert score == pytest.approx(expected.item(), abs=1e-4)


def test_scores_do_not_depend_on_the_batch():
    model, pairs = random_model(), pairs_of(OURS["reasoning"])
    alone = nats_per_byte(LocalBackend(model, TOKENIZER, [], batch_size=1), pairs, SILENT)
    for batch_size in (3, 1000):
        together = nats_per_byte(LocalBackend(model, TOKENIZER, [], batch_size), pairs, SILENT)
        assert together == pytest.approx(alone, abs=1e-4)


class Knowing(torch.nn.Module):
    """Makes the next token of these texts likely where it has read all that stands before, and knows nothing else."""

    def __init__(self, texts: list[list[int]]):
        super().__init__()
        self.config = GPTNeoConfig(vocab_size=3000, block_size=128)
        self.next = {tuple(ids[:i]): ids[i] for ids in texts for i in range(1, len(ids))}
        self.wte, self.head, self.attend = torch.nn.Embedding(1, 1), torch.nn.Identity(), None

    def hidden(self, tokens, positions, attend):
        x = torch.zeros(*tokens.shape, 3000)
        for row, ids in enumerate(tokens.tolist()):
            for i in range(len(ids)):
                x[row, i, self.next.get(tuple(ids[: i + 1]), 0)] = 20.0
        return x


class Mute(LocalBackend):
    def complete(self, prompts, keys, sampling):
        return ((i, "", True) for i in range(len(prompts)))


@pytest.mark.parametrize("which, expected", [(0, "right"), (1, "wrong")])
def test_a_model_that_knows_the_answers_is_always_right(which, expected):
    for probes in OURS.values():
        backend = Mute(None, TOKENIZER, [TOKENIZER.end_of_text], batch_size=50)
        backend.model = Knowing([backend.encode(one.prompt + one.answers[which]) for one in probes])
        results = answer_probes(backend, probes, Sampling(), SILENT)
        assert {result.verdict for result in results} == {expected}


def test_verdicts():
    for scores, verdict in (
        ((-1.0, -1.1, -3.0), "right"),
        ((-1.0, -1.0), "nearly"),
        ((-1.09, -3.0, -1.0), "nearly"),
        ((-1.11, -3.0, -1.0), "wrong"),
        ((), ""),
    ):
        assert Result(scores, "").verdict == verdict


# Prompts of one's own

GOOD = '{"prompt": "A", "right": " b", "wrong": [" c"]}\n'


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("{", "must be an object such as"),
        ("[" * 100_000, "must be an object such as"),
        ("3", "must be an object such as"),
        ('"A"', "must be an object such as"),
        ('{"prompt": "A", "right": " b"}', "must be an object such as"),
        ('{"prompt": 3, "right": " b", "wrong": [" c"]}', "must be an object such as"),
        ('{"prompt": "A", "right": " b", "wrong": [null]}', "must be an object such as"),
        ('{"prompt": "A\\ud800", "right": " b", "wrong": [" c"]}', "must be an object such as"),
        ("\udcff", "must be an object such as"),  # a byte that is no UTF-8
        (
            '{"prompt": "A ", "right": " b", "wrong": [" c"]}',
            "the prompt must be a text that does not end with a space",
        ),
        ('{"prompt": "", "right": " b", "wrong": [" c"]}', "the prompt must be a text"),
        ('{"prompt": "A", "right": "b", "wrong": [" c"]}', "every answer must begin with one space"),
        ('{"prompt": "A", "right": " b", "wrong": " c"}', "every answer must begin with one space"),
        ('{"prompt": "A", "right": " b ", "wrong": [" c"]}', "every answer must begin with one space"),
        ('{"prompt": "A", "right": "  b", "wrong": [" c"]}', "every answer must begin with one space"),
        ('{"prompt": "A", "right": " b", "wrong": []}', "there must be a wrong answer"),
        ('{"prompt": "A", "right": " b", "wrong": [" c", " b"]}', "no answer twice"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, complaint):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(f"{GOOD}\n{line}\n{GOOD}".encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=f"mine.jsonl, line 3: .*{complaint}") as caught:
        read_probes(path, "mine")
    assert "\n" not in str(caught.value)
