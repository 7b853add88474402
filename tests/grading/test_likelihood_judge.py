"""likelihood_judge.py: scores as transformers gives them, each read once, by the run's own corpus
alone."""

import math
import shutil

import pytest
import torch
from grade_fixtures import means, records, wins, write_samples
from random_models import (
    TOKENIZER,
    as_transformers,
    model_to_probe,
    random_model,
    save_run,
    trained_on,
)

from nanostories.checkpoints.huggingface import save_hf
from nanostories.checkpoints.models import open_model
from nanostories.corpus.token_files import load_stories
from nanostories.generation.backends import LocalBackend, load_backend
from nanostories.generation.token_likelihoods import log_likelihoods
from nanostories.grading import likelihood_judge
from nanostories.grading.controls import reordered
from nanostories.grading.groups import group_runs
from nanostories.grading.likelihood_judge import (
    N_OTHERS,
    LikelihoodJudge,
    default_judges,
    other_beginnings,
)
from nanostories.grading.scores import CUT, LIKELIHOOD, OTHER, SHUFFLED
from nanostories.grading.stories import Story, read_runs
from nanostories.results import load

STORIES = [
    Story("Tom had a red", " ball. He lost it."),
    Story("Mia saw the", " sea. It was blue.\n\nMia was glad. She swam."),
    Story("Zoë went to the café. She", " sat.\n\nThen she slept."),
    Story("One day, a dog", "gy barked."),
    Story("Ben ran. He", " fell."),
    Story("A cat sat on", " the mat. It did not move."),
    Story("", " A story without a beginning.", "Words: cat"),
]
POOL = [story.prompt for story in STORIES]


class Cache(dict):
    add = dict.__setitem__


@pytest.fixture(autouse=True)
def corpus(tmp_path, monkeypatch):
    """A corpus whose validation stories begin as STORIES do."""
    beginnings = likelihood_judge.beginnings
    monkeypatch.setattr(
        likelihood_judge, "beginnings", lambda path: POOL if path == tmp_path else beginnings(path)
    )
    (tmp_path / "meta.json").touch()
    return tmp_path


def scored(judge: LikelihoodJudge, corpus, stories=STORIES) -> dict[Story, dict[str, float]]:
    return judge.grade(stories, corpus, Cache())


@pytest.mark.parametrize("prefix", ["<|endoftext|>", ""])
def test_scores_are_those_of_transformers(tmp_path, prefix, corpus, monkeypatch):
    transformers = pytest.importorskip("transformers")
    save_hf(model_to_probe(), tmp_path / "hf", TOKENIZER, prompt_prefix=prefix)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval().double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")

    def bits(before: str, text: str) -> torch.Tensor:
        ids = [tokenizer(prefix + before).input_ids, tokenizer(text).input_ids]
        ids, n = torch.tensor([sum(ids, [])]), len(ids[1])
        with torch.no_grad():
            log_probabilities = theirs(ids).logits.log_softmax(-1)[0, -n - 1 : -1]
        return log_probabilities.gather(1, ids[0, -n:, None])[:, 0] / math.log(2)

    monkeypatch.setattr(likelihood_judge, "AT_ONCE", 3)
    for story, scores in scored(LikelihoodJudge(f"lm:hf:{tmp_path / 'hf'}"), corpus).items():
        before, n = story.opening or "Words: cat\nStory:", len(story.completion.encode())
        own = bits(before, story.completion).sum() / n
        orders = [reordered(story, i) if i % 2 else story.completion for i in range(N_OTHERS)]
        others = other_beginnings(story, corpus)
        assert len({*others, before}) == N_OTHERS + 1
        elsewhere = sum(bits(*pair).sum() / n for pair in zip(others, orders)) / N_OTHERS
        assert scores["fluency"] == pytest.approx(own.item(), abs=1e-4)
        assert scores["consistency"] == pytest.approx((own - elsewhere).item(), abs=1e-4)
        end = bits(before, story.completion + "<|endoftext|>")[-1]
        assert scores["ending"] == pytest.approx(2 ** end.item(), rel=1e-3)


def test_what_has_no_text_or_no_corpus_has_no_such_score(tmp_path, corpus):
    save_run(tmp_path / "run", model_to_probe())
    judge, silent, alone = (
        LikelihoodJudge(f"lm:{tmp_path / 'run'}"),
        Story("Tom had a", ""),
        Story("A", " ball."),
    )
    assert set(scored(judge, corpus, [silent])[silent]) == {"ending"}
    assert set(scored(judge, None, [alone])[alone]) == {"fluency", "ending"}


def test_long_texts_are_read_in_windows():
    """Against reading each token's window by itself, in float64, in transformers."""
    pytest.importorskip("transformers")
    model, context = random_model(), 40
    theirs = as_transformers(model).double()
    backend = LocalBackend(model, None, [], batch_size=4)
    for n_before, n_text in [(1, 70), (10, 41), (100, 30), (39, 2), (20, 20), (41, 120)]:
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
def out(tmp_path, data_dir, grade_py):
    """out/a and out/b, trained on the same corpus, and out/judge, which wrote neither."""
    for name in "ab":
        save_run(
            tmp_path / "out" / name, model_to_probe(block_size=400), **trained_on(data_dir, "tiny")
        )
    save_run(tmp_path / "out" / "judge", model_to_probe(block_size=400))
    return tmp_path / "out"


LM = ("--judge", "lm:out/judge")


def test_from_samples_to_the_table(out, grade_py, api):
    code, printed = grade_py("--judge", "lm:out/judge/", judge=None)
    assert code == 0 and api.requests == []
    assert len(records(out)) == 40  # 20 completions, 4 controls of each of 5 prompts
    found = {name for judge, _, name in means(out) if judge}
    assert found == LIKELIHOOD.keys()
    for kind in (SHUFFLED, OTHER, CUT):
        assert ("lm:out/judge", kind, "fluency") in wins(out)
    assert not any("itself" in table.notes.values() for table in load(out / "grades.json").tables)


def test_nothing_is_read_twice_and_it_is_known_by_its_weights(out, grade_py):
    assert grade_py(*LM, judge=None)[0] == 0
    before, n = means(out), len(records(out))
    # as a kill would leave it
    (out / "grades.jsonl").write_bytes((out / "grades.jsonl").read_bytes()[:-30])
    assert grade_py(*LM, judge=None)[0] == 0
    assert len(records(out)) == n and means(out) == pytest.approx(before, nan_ok=True)
    (out / "judge").rename(out / "moved")
    assert grade_py("--judge", "lm:out/moved", judge=None)[0] == 0 and len(records(out)) == n
    save_run(out / "judge", model_to_probe(block_size=400, n_layer=1))  # trained anew
    assert grade_py(*LM, judge=None)[0] == 0 and len(records(out)) == 2 * n


def test_other_beginnings_are_those_of_the_runs_own_corpus(out, data_dir):
    pool = likelihood_judge.beginnings(data_dir / "tiny")
    stories = list(load_stories(data_dir / "tiny", "val")[1])
    assert len(pool) == min(len(stories), likelihood_judge.POOL)
    assert all(any(story.startswith(text) and story != text for story in stories) for text in pool)
    others = other_beginnings(Story(pool[0], " x"), data_dir / "tiny")
    assert pool[0] not in others and {*others} < {*pool}
    assert others == other_beginnings(Story(pool[0], " y"), data_dir / "tiny")


def test_a_runs_scores_do_not_depend_on_other_runs(out, grade_py, data_dir):
    """Of its own corpus or of another, with other stories or other prompts."""
    assert grade_py(*LM, judge=None)[0] == 0
    before = means(out)
    write_samples(out / "b", 7, 1, seed=3)
    write_samples(out / "0", 5, 1, before="Now ")
    save_run(out / "0", model_to_probe(block_size=400), **trained_on(data_dir, "nowhere"))
    assert grade_py(*LM, judge=None)[0] == 0
    after = means(out)
    for score in LIKELIHOOD:
        own = "lm:out/judge", "a", score
        assert after[own] == pytest.approx(before[own], rel=1e-6)
    other = "lm:out/judge", "b", "fluency"
    assert after[other] != before[other]


def test_its_own_stories_are_known_by_weights_and_by_place(out, grade_py):
    judge = load_backend(open_model(str(out / "judge")))
    write_samples(out / "a", 5, 2, weights=judge.identity()["weights"])
    write_samples(out / "judge" / "step-9", 5, 2, weights="others")
    assert grade_py(*LM, judge=None)[0] == 0
    table = load(out / "grades.json").tables
    facts = {"kind": "scores", "judge": "lm:out/judge", "set": "eval"}
    (scores,) = [x for x in table if x.facts == facts]
    own = [name for name, note in scores.notes.items() if "the judge itself" in note]
    assert sorted(own) == ["a", "judge/step-9"]


def test_both_kinds_of_judges_in_one_call(out, grade_py, api):
    code, printed = grade_py(*LM, judge="rules")
    # no controls, which cost money, unless they are asked for
    assert code == 0 and len(api.requests) == 20
    assert {"lm:out/judge", "rules"} < {judge for judge, *_ in means(out)}
    assert "rules is untested; run grade.py with --controls" in printed.out


def test_one_whose_weights_are_broken(out, grade_py):
    model = model_to_probe(block_size=400)
    with torch.no_grad():
        model.ln_f.bias[0] = float("nan")
    save_run(out / "broken", model)
    code, _ = grade_py("--judge", "lm:out/broken", judge=None)
    assert "not finite" in code and "\n" not in code


# ---- Without --judge: the best run of each text grades all of its runs; no API is asked ----
@pytest.fixture
def train(tmp_path, monkeypatch, grade_py, data_dir):
    """No key, and out/ is empty; train() leaves what train.py does of a run, and its samples."""
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    shutil.rmtree(out)

    def train(name: str, bpb: float, data: str = "tiny", **samples):
        save_run(out / name, model_to_probe(block_size=400), **trained_on(data_dir, data))
        log = ["step,val_loss,bpb,tokens,seconds,done", f"10,{3 * bpb},{bpb},9,9,0.5"]
        (out / name / "log.csv").write_text("\n".join([*log, f"20,{9 * bpb},{3 * bpb},18,9,1", ""]))
        write_samples(out / name, 3, 1, **samples)

    return train


def test_the_best_run_of_each_corpus_reads_the_others_of_that_corpus(tmp_path, train, capsys):
    """Bits per byte of other texts do not compare; and nobody knows which corpus a model from
    elsewhere has continued."""
    out = tmp_path / "out"
    for name, bpb, data in (("a", 1.1, "x"), ("b", 0.9, "x"), ("c", 1.0, "x")):
        train(name, bpb, data)
    train("d", 0.1, "y", before="Now ")
    write_samples(out / "b" / "temperature-0", 3, 1, seed=1)
    write_samples(out / "published", 3, 1, before="Then ")
    groups = group_runs(read_runs([out])[0])
    chosen = {}
    for judge, own_groups in default_judges(groups).items():
        chosen[judge] = [[run.name for run in group.runs] for group in own_groups]
    assert chosen == {
        "lm:out/b": [["a", "b", "b/temperature-0", "c"]],
        "lm:out/d": [["d"]],
    }
    assert capsys.readouterr().out.startswith("published: no judge")


def test_it_reads_along_with_a_chat_judge_whose_kept_grades_are_named(
    tmp_path, train, grade_py, monkeypatch
):
    train("a", 1.0)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    out = tmp_path / "out"
    assert grade_py()[0] == 0
    assert {judge for judge, *_ in means(out)} == {"", "lm:out/a", "rules"}
    code, printed = grade_py(judge=None)
    assert code == 0 and "without kept replies of rules" in printed.out
    code, printed = grade_py("--no_judge", judge=None)
    assert code == 0 and {judge for judge, *_ in means(out)} == {""}


def test_where_nothing_was_trained_no_api_is_asked(tmp_path, train, grade_py, api, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", api.url)
    write_samples(tmp_path / "out" / "published", 3, 1)
    code, printed = grade_py(judge=None)
    assert code == 0 and "no run of train.py" in printed.out and api.requests == []
    assert {judge for judge, _, _ in means(tmp_path / "out")} == {""}
