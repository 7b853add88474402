"""The likelihood judge: its three scores, what it keeps, and its controls."""

import math

import pytest
import torch
from grade_fixtures import records, table, write_samples
from models_to_probe import TOKENIZER, random_model, save_run
from random_models import as_transformers
from test_probe_answers import Knowing
from tqdm import tqdm

from checkpoints.huggingface import save_hf
from generation.backends import LocalBackend, load_backend
from generation.token_likelihoods import log_likelihoods
from grading import compare_models, ledger, likelihood_judge, scores_plot
from grading.compare_models import Finding
from grading.judge_controls import CUT, OTHER, SAFE, SHUFFLED, TRUE, any_order, make_controls
from grading.rubrics import LIKELIHOOD
from grading.scores_from_likelihood import N_OTHERS, other_beginnings, score
from grading.story import Story

SILENT = tqdm(disable=True)
STORIES = [
    Story("Tom had a red", " ball. He lost it."),
    Story("Mia saw the", " sea. It was blue.\n\nMia was glad. She swam."),
    Story("Zoë went to the café. She", " sat.\n\nThen she slept."),
    Story("One day, a dog", "gy barked."),
    Story("Ben ran. He", " fell."),
    Story("A cat sat on", " the mat. It did not move."),
    Story("", " A story without a beginning.", "Words: cat"),
]


# The scores


@pytest.mark.parametrize("prefix", ["<|endoftext|>", ""])
def test_scores_are_those_of_transformers(tmp_path, prefix):
    transformers = pytest.importorskip("transformers")
    save_hf(random_model(), tmp_path, TOKENIZER, prompt_prefix=prefix)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval().double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    others = other_beginnings(STORIES)

    def bits(before: str, text: str) -> torch.Tensor:
        ids = [tokenizer(prefix + before).input_ids, tokenizer(text).input_ids]
        ids, n = torch.tensor([sum(ids, [])]), len(ids[1])
        with torch.no_grad():
            log_probabilities = theirs(ids).logits.log_softmax(-1)[0, -n - 1 : -1]
        return log_probabilities.gather(1, ids[0, -n:, None])[:, 0] / math.log(2)

    scored = dict(score(load_backend(f"hf:{tmp_path}", batch_size=5), STORIES, others, SILENT))
    assert set(scored) == set(STORIES)
    for story, scores in scored.items():
        before, n = story.prompt or "Words: cat\nStory:", len(story.completion.encode())
        own = bits(before, story.completion).sum() / n
        orders = [any_order(story, i) if i % 2 else story.completion for i in range(N_OTHERS)]
        elsewhere = sum(bits(*pair).sum() / n for pair in zip(others[story.task], orders)) / N_OTHERS
        of_end = bits(before, story.completion + "<|endoftext|>")[-1]
        assert scores["fluency"] == pytest.approx(own.item(), abs=1e-4)
        assert scores["consistency"] == pytest.approx((own - elsewhere).item(), abs=1e-4)
        assert scores["ending"] == pytest.approx(2 ** of_end.item(), rel=1e-3)


def test_one_that_knows_a_story_knows_where_it_ends_and_how_it_begins():
    backend = LocalBackend(None, TOKENIZER, [TOKENIZER.end_of_text], batch_size=3)
    known = [*backend.encode(STORIES[0].prompt), *TOKENIZER.encode(STORIES[0].completion)]
    backend.model = Knowing([[*known, TOKENIZER.end_of_text]])
    scored = dict(score(backend, STORIES, other_beginnings(STORIES), SILENT))
    right = math.log1p(2999 * math.exp(-20))  # nats that it loses on a token that it knows; 20 on all others
    n = len(TOKENIZER.encode(STORIES[0].completion)) / len(STORIES[0].completion) / math.log(2)
    assert scored[STORIES[0]]["fluency"] == pytest.approx(-right * n, abs=1e-6)
    assert scored[STORIES[0]]["consistency"] == pytest.approx(20 * n, abs=1e-4)
    assert scored[STORIES[0]]["ending"] == pytest.approx(1, abs=1e-5)
    for story in STORIES[1:]:
        assert scored[story]["ending"] < 1e-6
        if any_order(story, 1) == any_order(story, 3) == story.completion:  # else it may have more tokens
            assert scored[story]["consistency"] == pytest.approx(0, abs=1e-4)


def test_what_has_no_text_or_no_others_has_no_such_score():
    backend = LocalBackend(random_model(), TOKENIZER, [TOKENIZER.end_of_text])
    silent, alone = Story("Tom had a", ""), Story("Tom had a", " ball.")
    (_, scores), *_ = score(backend, [silent], other_beginnings([silent, *STORIES]), SILENT)
    assert set(scores) == {"ending"}
    ((_, scores),) = score(backend, [alone], other_beginnings([alone]), SILENT)
    assert set(scores) == {"fluency", "ending"}


def test_other_beginnings_are_other_and_stay():
    stories = [Story(f"p{i}", "x") for i in range(40)]
    others = other_beginnings(stories)
    assert all(len(set(of)) == N_OTHERS and task not in of for task, of in others.items())
    more = other_beginnings([*stories, Story("another", "x"), *stories])
    assert sum(more[task] != others[task] for task in others) == N_OTHERS
    sources = {story.completion[-8:]: story.prompt for story in long_stories(40)}
    kinds = make_controls(long_stories(40))
    others = other_beginnings(kinds[TRUE])
    for story in kinds[OTHER]:  # the beginning that its ending belongs to is never one of them
        assert sources[story.completion[-8:]] not in others[story.task]


def long_stories(n: int) -> list[Story]:
    return [Story(f"Tom number {i} had a", f" ball. It was red. It rolled. End {i:04}") for i in range(n)]


# Texts that are longer than the context


@pytest.mark.parametrize("n_before, n_text", [(1, 70), (10, 41), (100, 30), (39, 2), (20, 20), (41, 120)])
def test_long_texts_are_read_in_windows(n_before, n_text):
    """Against reading each token's window by itself, in float64, in transformers."""
    pytest.importorskip("transformers")
    from random_models import random_model as other_shape

    model, context = other_shape(), 40
    theirs = as_transformers(model).double()
    backend = LocalBackend(model, None, [], batch_size=4)
    ids = torch.randint(97, (n_before + n_text,), generator=torch.Generator().manual_seed(0))
    (nats,) = log_likelihoods(backend, [(ids[:n_before].tolist(), ids[n_before:].tolist())])
    for i in range(n_before, len(ids)):
        start = 0
        while start + context < i:  # the first window that reaches it
            start = min(start + context // 2, len(ids) - 1 - context)
        with torch.no_grad():
            expected = theirs(ids[None, start:i]).logits[0, -1].log_softmax(-1)[ids[i]]
        assert nats[i - n_before] == pytest.approx(expected.item(), abs=2e-4)
        assert i - start > context // 2 or start == 0


# The command


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """out/a and out/b, graded by out/judge, which wrote neither. No pictures: they take seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grading.scores_plot.plot", lambda *args: None)
    save_run(tmp_path / "out" / "judge", random_model(block_size=400))
    return tmp_path / "out"


def judged(tmp_path) -> dict:
    """(kind, subject, figure) -> value, of the likelihood judge."""
    return {(r["kind"], r["subject"], r["figure"]): r["value"] for r in table(tmp_path) if r["judge"]}


def test_from_samples_to_the_table(runs, grade_py, tmp_path, api):
    code, printed = grade_py("--judge", "lm:out/judge/", judge=None)
    assert code == 0 and api.requests == []
    assert "lm:out/judge: 45 of 45 gradings\n" in printed.out  # 20 completions, five controls of each prompt
    found = judged(tmp_path)
    for run in "ab":
        for name in LIKELIHOOD.scores:
            by_hand = [r["scores"][name] for r in records(runs / run) if r["kind"] == "completion"]
            assert float(found["mean", run, name]) == pytest.approx(sum(by_hand) / 10, rel=1e-4)
    for kind in (SHUFFLED, OTHER, CUT, SAFE):
        assert ("paired_wins", kind, "fluency") in found and ("mean", kind, "ending") in found
    assert "lm:out/judge" in printed.out and "itself: a model writes" not in printed.out
    assert all(r["weights"] and r["text"] is None for r in records(runs / "a"))


def test_nothing_is_read_twice_and_a_kill_loses_a_line_at_most(runs, grade_py, tmp_path, monkeypatch):
    kept, keep = [], ledger.Request.keep

    def killed(self, **reply):
        if len(kept) == 17:
            raise KeyboardInterrupt
        kept.append(self.key)
        keep(self, **reply)

    with monkeypatch.context() as patch:
        patch.setattr(ledger.Request, "keep", killed)
        patch.setattr("grading.scores_from_likelihood.AT_ONCE", 5)
        assert "stopped; every reply so far is kept" in grade_py("--judge", "lm:out/judge", judge=None)[0]
    for run in "ab":
        path = runs / run / "grades.jsonl"
        path.write_bytes(path.read_bytes()[:-30])  # as a kill would leave it
    had = {r["key"] for run in "ab" for r in records(runs / run)}
    assert 10 < len(had) < 18
    again = []
    monkeypatch.setattr(ledger.Request, "keep", lambda self, **reply: (again.append(self.key), keep(self, **reply)))
    assert grade_py("--judge", "lm:out/judge", judge=None)[0] == 0
    assert len(again) == len(set(again)) and not had & set(again) and len(had | set(again)) == 45
    interrupted = judged(tmp_path)
    assert grade_py("--judge", "lm:out/judge", judge=None)[0] == 0 and len(again) == 45 - len(had)
    for run in "ab":
        (runs / run / "grades.jsonl").unlink()
    assert grade_py("--judge", "lm:out/judge", judge=None)[0] == 0
    assert {k: float(v or 0) for k, v in judged(tmp_path).items()} == pytest.approx(
        {k: float(v or 0) for k, v in interrupted.items()}, rel=1e-4
    )


def test_it_is_known_by_its_weights_not_by_its_path(runs, grade_py, tmp_path, monkeypatch):
    assert grade_py("--judge", "lm:out/judge", judge=None)[0] == 0
    before = table(tmp_path)
    code, printed = grade_py("--no_judge", judge=None)
    assert "lm:out/judge: 45 of 45 gradings, as recorded earlier" in printed.out
    assert sorted(map(str, table(tmp_path))) == sorted(map(str, before))
    n = len(records(runs / "a"))
    (runs / "judge").rename(runs / "moved")
    code, printed = grade_py("--judge", "lm:out/moved", judge=None)
    assert code == 0 and "lm:out/moved: 45 of 45 gradings\n" in printed.out and len(records(runs / "a")) == n
    save_run(runs / "judge", random_model(block_size=400, n_layer=1))  # trained anew
    code, printed = grade_py("--judge", "lm:out/judge", judge=None)
    assert "lm:out/judge (weights " in printed.out and ": 45 of 45 gradings, as recorded earlier" in printed.out
    assert len(records(runs / "a")) > 1.9 * n
    monkeypatch.setattr("grading.scores_from_likelihood.DEFINITION", "another")  # of which nothing is kept
    code, printed = grade_py("--no_judge", judge=None)
    assert code == 0 and "lm:" not in printed.out


def test_who_judges_itself_is_told_so(runs, grade_py):
    weights = load_backend("out/judge").identity()["weights"]
    write_samples(runs / "a", 5, 2, weights=weights)
    code, printed = grade_py("--judge", "lm:out/judge", judge=None)
    assert "WARNING lm:out/judge wrote the stories of a itself, and a model likes its own words" in printed.out


def test_safe_endings_are_its_own_and_drawn_once(runs, grade_py, tmp_path, monkeypatch):
    write_samples(runs / "a", 12, 1)
    code, printed = grade_py("out/a", "--judge", "lm:out/judge", judge=None)
    safe = {r["prompt_index"]: r["safe_ending"] for r in records(runs / "a") if r["kind"] == SAFE}
    assert len(safe) == 12
    assert "WARNING fluency: lm:out/judge prefers safe endings" in printed.out
    assert code == 0 and float(judged_alone(runs / "a")["paired_wins", SAFE, "fluency"]) == 0
    write_samples(runs / "c", 15, 1)
    assert grade_py("out/c", "--judge", "lm:out/judge", judge=None)[0] == 0
    others = {r["prompt_index"]: r["safe_ending"] for r in records(runs / "c") if r["kind"] == SAFE}
    assert safe.items() <= others.items()  # whatever else was drawn
    monkeypatch.setattr(LocalBackend, "complete", lambda self, prompts, *_: iter([None] * len(prompts)))
    assert grade_py("out/a", "--judge", "lm:out/judge", judge=None)[0] == 0
    assert float(judged_alone(runs / "a")["mean", SAFE, "ending"]) >= 0


def judged_alone(run) -> dict:
    findings = compare_models.read_csv(run / "grades.csv")
    return {(f.kind, f.subject, f.figure): f.value for f in findings if f.judge}


def test_other_judges_in_the_same_call(runs, grade_py, tmp_path, api):
    code, printed = grade_py("--judge", "lm:out/judge", judge="rules")
    assert code == 0 and len(api.requests) == 20  # no controls, which cost money, unless they are asked for
    assert printed.out.index("lm:out/judge: 45 of 45") < printed.out.index("rules: 20 of 20")
    rows = table(tmp_path)
    agreement = {(r["kind"], r["figure"]) for r in rows if r["subject"] == "lm:out/judge, rules"}
    assert agreement == {("spearman", "consistency")}  # they have this score in common, though not its scale
    assert ("rules", "ending") not in {(r["judge"], r["figure"]) for r in rows}
    assert "WARNING rules is unvalidated; run grade.py with --controls" in printed.out


def test_without_true_endings(runs, grade_py):
    for run in "ab":
        write_samples(runs / run, 5, 2, reference=None)
    code, printed = grade_py("--judge", "lm:out/judge", judge=None)
    assert code == 0 and "lm:out/judge: 20 of 20 gradings" in printed.out
    assert "WARNING lm:out/judge is unvalidated; its controls need true endings" in printed.out


def test_a_dry_run_reads_nothing(runs, grade_py, monkeypatch):
    monkeypatch.setattr(likelihood_judge, "tqdm", None)
    code, printed = grade_py("--judge", "lm:out/judge", "--dry_run", judge=None)
    assert code == 0 and printed.out.startswith("lm:out/judge: 40 stories to read, plus 160 readings after other")
    assert not (runs / "a" / "grades.jsonl").exists()


def test_long_texts_are_said(runs, grade_py):
    save_run(runs / "short", random_model(block_size=100))
    code, printed = grade_py("out/a", "--judge", "lm:out/short", judge=None)
    assert code == 0 and "stories are longer than its context of 100 tokens; it reads them in windows" in printed.out


def test_one_whose_weights_are_broken(runs, grade_py):
    model = random_model(block_size=400)
    with torch.no_grad():
        model.ln_f.bias[0] = float("nan")
    save_run(runs / "broken", model)
    for run in "ab":
        write_samples(runs / run, 5, 2, reference=None)
    code, _ = grade_py("--judge", "lm:out/broken", judge=None)
    assert "likelihoods are not finite" in code and "\n" not in code


def test_its_scores_are_pictured(tmp_path):
    from matplotlib.image import imread

    means = [("fluency", -0.9), ("consistency", 0.1), ("ending", 0.5)]
    findings = [Finding("mean", "lm:j", run, name, x, x - 0.1, x + 0.1, 9) for run in "ab" for name, x in means]
    findings += [Finding("mean", "rules", run, "plot", 5, 4, 6, 9) for run in "ab"]
    scores_plot.plot(tmp_path / "one.png", findings, ["a", "b"], ["lm:j"])
    scores_plot.plot(tmp_path / "both.png", findings, ["a", "b"], ["lm:j", "rules"])
    one, both = (imread(tmp_path / name) for name in ("one.png", "both.png"))
    assert both.shape[0] > 1.5 * one.shape[0] and one.shape[1] > 400
