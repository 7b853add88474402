"""likelihood_judge.py: scores as transformers gives them, each read once, by the run's own corpus
alone."""

import math
import shutil
from statistics import fmean

import pytest
import torch
from grade_fixtures import means, read_by_transformers, records, wins, write_samples
from random_models import (
    TOKENIZER,
    as_transformers,
    model_to_probe,
    random_model,
    save_run,
    trained_on,
)

from nanostories.checkpoints.checkpoint import identity_of_checkpoint
from nanostories.checkpoints.huggingface import save_hf
from nanostories.corpus.token_files import load_stories
from nanostories.generation.backends import LocalBackend
from nanostories.generation.prompts import cut_story
from nanostories.generation.token_likelihoods import log_likelihoods
from nanostories.grading.comparisons import OWN_WORDS
from nanostories.grading.controls import reordered
from nanostories.grading.groups import group_runs
from nanostories.grading.likelihood_judge import (
    N_OTHERS,
    LikelihoodJudge,
    default_judges,
    other_beginnings,
)
from nanostories.grading.scores import LIKELIHOOD, SPOILED
from nanostories.grading.stories import Story, read_runs
from nanostories.results import load

STORIES = [
    Story("Tom had a red", " ball. He lost it."),
    Story("Mia saw the", " sea. It was blue.\n\nMia was glad. She swam."),
    Story("Zoë went to the café. She", " sat.\n\nThen she slept."),
    Story("One day, a dog", "gy barked."),
    Story("", " A story without a beginning.", "Words: cat"),
]
MODEL = model_to_probe(block_size=400)


class Cache(dict):
    add = dict.__setitem__


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A corpus whose validation stories begin as STORIES do."""
    pool = [story.prompt for story in STORIES]
    monkeypatch.setattr("nanostories.grading.likelihood_judge.beginnings", lambda path: pool)
    return tmp_path


@pytest.mark.parametrize("prefix", ["<|endoftext|>", ""])
def test_scores_are_those_of_transformers(tmp_path, prefix, corpus, monkeypatch):
    save_hf(model_to_probe(), tmp_path / "hf", TOKENIZER, prompt_prefix=prefix)
    nats = read_by_transformers(tmp_path / "hf")

    def bits(before: str, text: str) -> float:
        return sum(nats(prefix + before, text)) / math.log(2) / len(text.encode())

    monkeypatch.setattr("nanostories.grading.likelihood_judge.AT_ONCE", 3)
    judge = LikelihoodJudge(f"lm:hf:{tmp_path / 'hf'}")
    for story, scores in judge.grade(STORIES, corpus, Cache()).items():
        before = story.opening or "Words: cat\nStory:"
        own = bits(before, story.completion)
        orders = [reordered(story, i) if i % 2 else story.completion for i in range(N_OTHERS)]
        others = other_beginnings(story, corpus)
        assert len({*others, before}) == N_OTHERS + 1
        elsewhere = fmean(map(bits, others, orders))
        assert scores["fluency"] == pytest.approx(own, abs=1e-4)
        assert scores["consistency"] == pytest.approx(own - elsewhere, abs=1e-4)
        end = nats(prefix + before, story.completion + "<|endoftext|>")[-1]
        assert scores["ending"] == pytest.approx(math.exp(end), rel=1e-3)


def test_what_has_no_text_or_no_corpus_has_no_such_score(tmp_path, corpus):
    save_run(tmp_path / "run", model_to_probe())
    judge = LikelihoodJudge(f"lm:{tmp_path / 'run'}")
    silent = Story("Tom had a", "")
    assert judge.grade([silent], corpus, Cache())[silent].keys() == {"ending"}
    assert judge.grade(STORIES, None, Cache())[STORIES[0]].keys() == {"fluency", "ending"}


@torch.no_grad()
def test_long_texts_are_read_in_windows():
    """Against reading each token's window by itself, in float64, in transformers."""
    pytest.importorskip("transformers")
    model = random_model()
    context = 40
    theirs = as_transformers(model).double()
    backend = LocalBackend(model, None, [], batch_size=4)
    for n_before, n_text in [(1, 70), (100, 30), (39, 2), (41, 120)]:
        ids = torch.randint(97, (n_before + n_text,))
        (nats,) = log_likelihoods(backend, [(ids[:n_before].tolist(), ids[n_before:].tolist())])
        for i in range(n_before, len(ids)):
            start = 0
            while start + context < i:  # the first window that reaches it
                start = min(start + context // 2, len(ids) - 1 - context)
            expected = theirs(ids[None, start:i]).logits[0, -1].log_softmax(-1)[ids[i]]
            assert nats[i - n_before] == pytest.approx(expected.item(), abs=2e-4)


# The command


@pytest.fixture
def by_judge(out, data_dir, graded):
    """out/a and out/b, trained on the same corpus, and out/judge, which wrote neither and grades
    them, or another judge does."""
    for name in "ab":
        save_run(out / name, MODEL, **trained_on(data_dir, "tiny"))
    save_run(out / "judge", MODEL)
    return lambda judge="out/judge": graded("--judge", f"lm:{judge}", judge=None)


def test_nothing_is_read_twice_and_it_is_known_by_its_weights(out, by_judge):
    def n_read(judge: str = "out/judge") -> int:
        by_judge(judge)
        return len(records(out))

    assert n_read("out/judge/") == 40  # 20 completions, 4 controls of each of 5 prompts
    before = means(out)
    assert {name for judge, _, name in before if judge} == LIKELIHOOD.keys()
    assert {control for _, control, _ in wins(out)} == set(SPOILED)
    # as a kill would leave it
    (out / "grades.jsonl").write_bytes((out / "grades.jsonl").read_bytes()[:-30])
    assert n_read() == 40 and means(out) == pytest.approx(before, nan_ok=True)
    (out / "judge").rename(out / "moved")
    assert n_read("out/moved") == 40
    save_run(out / "judge", model_to_probe(block_size=400, n_layer=1))  # trained anew
    assert n_read() == 80


def test_other_beginnings_are_those_of_the_runs_own_corpus(data_dir):
    corpus = data_dir / "tiny"
    first, *rest = [cut_story(story, 0.5).text for story in load_stories(corpus, "val")[1]]
    others = other_beginnings(Story(first, " x"), corpus)
    assert others and set(others) <= set(rest) - {first}
    assert others == other_beginnings(Story(first, " y"), corpus)


def test_a_runs_scores_do_not_depend_on_other_runs(out, by_judge, data_dir):
    """Of its own corpus or of another, with other stories or other prompts."""
    by_judge()
    before = means(out)
    write_samples(out / "b", 7, 1, seed=3)
    write_samples(out / "0", 5, 1, before="Now ")
    save_run(out / "0", MODEL, **trained_on(data_dir, "nowhere"))
    by_judge()
    after = means(out)
    for score in LIKELIHOOD:
        own = "lm:out/judge", "a", score
        assert after[own] == pytest.approx(before[own], rel=1e-6)
    other = "lm:out/judge", "b", "fluency"
    assert after[other] != before[other]


def test_its_own_stories_are_known_by_weights_and_by_place(out, by_judge):
    write_samples(out / "a", 5, 2, weights=identity_of_checkpoint(out / "judge"))
    write_samples(out / "judge" / "temperature-0.3", 5, 2, weights="others")
    by_judge()
    notes = {}
    for table in load(out / "grades.json").tables:
        notes |= table.notes
    own = [name for name, note in notes.items() if note == OWN_WORDS]
    assert sorted(own) == ["a", "judge/temperature-0.3"]


def test_one_whose_weights_are_broken(out, grade_py):
    model = model_to_probe()
    torch.nn.init.constant_(model.ln_f.bias, float("nan"))
    save_run(out / "broken", model)
    assert "not finite" in grade_py("--judge", "lm:out/broken", judge=None)[0]


# ---- Without --judge: the best run of each text grades all of its runs; no API is asked ----
@pytest.fixture
def train(out, monkeypatch, grade_py, data_dir):
    """No key, and out/ is empty; train() leaves what train.py does of a run, and its samples."""
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.chdir(out.parent)
    shutil.rmtree(out)

    def train(name: str, bpb: float, data: str = "tiny", **samples):
        save_run(out / name, MODEL, **trained_on(data_dir, data))
        log = f"step,val_loss,bpb,tokens,seconds,done\n10,3,{bpb},9,9,0.5\n20,9,{3 - bpb},9,9,1\n"
        (out / name / "log.csv").write_text(log)
        write_samples(out / name, 3, 1, **samples)

    return train


def test_the_best_run_of_each_corpus_reads_the_others_of_that_corpus(out, train, capsys):
    """Bits per byte of other texts do not compare; and nobody knows which corpus a model from
    elsewhere has continued."""
    for name, bpb in (("a", 1.1), ("b", 0.9), ("c", 1.0)):
        train(name, bpb, "x")
    train("d", 0.1, "y", before="Now ")
    write_samples(out / "b" / "temperature-0", 3, 1, seed=1)
    write_samples(out / "published", 3, 1, before="Then ")
    groups = group_runs(read_runs([out])[0])
    chosen = {}
    for judge, own_groups in default_judges(groups).items():
        chosen[judge] = [[run.name for run in group.runs] for group in own_groups]
    assert chosen == {"lm:out/b": [["a", "b", "b/temperature-0", "c"]], "lm:out/d": [["d"]]}
    assert capsys.readouterr().out.startswith("published: no judge")


def test_it_reads_along_with_a_chat_judge(out, train, graded):
    train("a", 1.0)
    # no controls, which cost money, unless they are asked for
    assert "rules is untested" in graded()
    assert {judge for judge, *_ in means(out)} == {"", "lm:out/a", "rules"}


def test_where_nothing_was_trained_no_api_is_asked(out, train, graded, api, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    write_samples(out / "published", 3, 1)
    assert "published: no judge" in graded(judge=None) and api.requests == []
