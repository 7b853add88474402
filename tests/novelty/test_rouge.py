"""rouge.py: what its report says is true, and copies are flagged."""

import json
import random
import shutil
import subprocess
import sys

import numpy as np
import planted
import pytest
from conftest import ROOT
from rouge_score.tokenize import tokenize

import rouge
from corpus import builtin_stories, preparation
from generation.prompts import cut_story
from generation.samples_file import write_rows
from novelty import rouge_analysis
from novelty.compare_texts import encode_completions, held_out_pieces, read_completions
from novelty.corpus_words import open_stories
from novelty.flag_copies import MIN_WORDS, copied_length, side_by_side
from novelty.rouge_scores import rouge_k


def words(text: str) -> list[str]:
    return tokenize(text, None)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """data/tiny and, of its training and validation stories, the texts."""
    stories = [story.text for story in builtin_stories.stories(300)]
    data = tmp_path_factory.mktemp("rouge") / "data" / "tiny"
    preparation.prepare(data, ["tests"], stories[100:], stories[:100], 1000, 0.1, 0, 1)
    return data, stories[100:], stories[:100]


def rows_of(completions: list[str], validation: list[str], n: int) -> list[dict]:
    """samples.jsonl: n completions for each validation story."""
    rows = []
    for i in range(len(completions) // n):
        prompt = cut_story(validation[i], 0.5)
        facts = dict(prompt_index=i, prompt=prompt.text, reference=prompt.reference)
        rows += [facts | dict(sample_index=j, completion=completions[n * i + j]) for j in range(n)]
    return rows


@pytest.fixture
def rouge_py(command_line, tmp_path):
    return command_line(rouge, tmp_path)


@pytest.fixture
def run(corpus, tmp_path):
    """out/tiny: 20 prompts x 3 completions; the first is a training story's ending, the second has its name and nouns
    changed."""
    data, training, validation = corpus
    completions = [cut_story(story, 0.5).reference for story in validation[20:80]]
    completions[0] = cut_story(training[5], 0.5).reference
    name = next(name for name in builtin_stories.NAMES if name in cut_story(training[6], 0.5).reference)
    nouns, text = set(builtin_stories.NOUNS), cut_story(training[6], 0.5).reference.replace(name, "Zorban")
    completions[1] = planted.replace_words(text, nouns, sorted(nouns), random.Random(0))
    completions[59] = ""
    write_rows(tmp_path / "out" / "tiny" / "samples.jsonl", rows_of(completions, validation, 3))
    return tmp_path / "out" / "tiny"


def test_a_report_says_what_is_so(run, corpus, rouge_py):
    data, training, validation = corpus
    code, printed = rouge_py(run, "--data", data)
    assert code == 0
    facts = json.loads((run / "rouge.json").read_text())
    rows = read_completions(run / "samples.jsonl")
    details, figures = facts["details"], facts["figures"]
    by_hand = [max(rouge_k(row["completion"], story).f for story in training) for row in rows]
    assert [detail["f"] for detail in details] == pytest.approx(by_hand, abs=1e-12)
    assert figures["training_f"]["completions"]["mean"] == pytest.approx(np.mean(by_hand))
    for row, detail in zip(rows, details):
        assert detail["nearest_text"] is None or rouge_k(row["completion"], detail["nearest_text"]).f == detail["f"]
        assert detail["span"] in " ".join(words(row["completion"]))
        assert detail["span_story"] < 0 or detail["span"] in " ".join(words(training[detail["span_story"]]))
    endings = [rouge_k(row["completion"], row["reference"]).f for row in rows]
    assert figures["ending_f"]["completions"]["mean"] == pytest.approx(np.mean(endings))
    others = [max(rouge_k(a["completion"], b["completion"]).f for b in rows if b is not a) for a in rows]
    assert figures["any_other_f"]["completions"]["mean"] == pytest.approx(np.mean(others))
    published = [rouge_k(row["completion"], row["reference"]).precision for row in rows], others, by_hand
    for name, values in zip(("ending_precision", "any_other_f", "training_f"), published):  # drawn as histograms
        assert facts["values"][name]["completions"] == pytest.approx(values, abs=1e-4), name
    together = " ".join(
        f"{' '.join(words(story))} |" for story in training
    )  # no span continues from one story into the next
    shares = []
    for text in (words(row["completion"]) for row in rows):
        threes = [" ".join(text[i : i + 3]) for i in range(len(text) - 2)]
        shares += [np.mean([f" {three} " in f" {together} " for three in threes])] if threes else []
    assert figures["share_3"]["completions"]["mean"] == pytest.approx(np.mean(shares))
    for figure in figures.values():
        for found in figure.values():
            assert found["low"] <= found["mean"] <= found["high"]
    assert printed.out.splitlines()[-1].startswith("wrote rouge.json and rouge.png; next: ")
    assert (run / "rouge.png").read_bytes().startswith(b"\x89PNG")


def test_copies_are_flagged_side_by_side_with_their_story(run, corpus, rouge_py):
    data, training, _ = corpus
    assert rouge_py(run, "--data", data, "--threshold", "0.95")[0] == 0
    details = json.loads((run / "rouge.json").read_text())["details"]
    assert [detail["flag"] for detail in details[:2]] == ["copy", "template"]
    assert [training[detail["flag_story"]] for detail in details[:2]] == training[5:7]
    text, n_words = (run / "flagged.txt").read_text(), details[0]["words"]
    assert f"{n_words} of its {n_words} words occur in a row in training story {details[0]['flag_story']}" in text
    lines = [line.split(" = ") for line in text.split("\n\n")[2].splitlines()]
    assert all(left.strip() == right for left, right in lines)  # the story's beginning is not shown
    assert " ".join(right for _, right in lines) == " ".join(cut_story(training[5], 0.5).reference.split())


def test_a_copied_passage_is_shown_beside_its_source(corpus):
    data, training, _ = corpus
    source = training[5].split()
    left = " ".join(["Zorb"] * 30 + source[20:60] + ["Gnarl"] * 10)
    for by_tokens in (False, True):
        lines = side_by_side(left, training[5], open_stories(data, by_tokens), classes=None).splitlines()
        begin = next(i for i, line in enumerate(lines) if " = " in line)
        assert lines[begin].split(" = ")[1].startswith(" ".join(source[20:24]))
        assert lines[begin - 1].split(" | ")[1] in " ".join(source[:20])
        assert sum(" = " in line for line in lines) >= 3


def test_a_passage_counts_as_copied_if_few_held_out_pieces_have_one_as_long():
    short, long = [np.array([13, 12])] * 990, [np.array([40])]
    assert copied_length(short) == copied_length(short + 10 * long) == MIN_WORDS
    assert copied_length(short + 11 * long) == copied_length([*short[:4], *long]) == 41


def test_held_out_pieces_are_as_long_and_from_the_same_place(run, corpus):
    data, _, validation = corpus
    training = open_stories(data)
    rows = read_completions(run / "samples.jsonl")
    completions = encode_completions(rows, training)
    pieces = held_out_pieces(training, completions)
    begin = [len(words(row["prompt"])) for row in rows]
    endings = training.encode(validation)
    for completion, piece, story, place in zip(completions.words, pieces.words, pieces.clusters, begin):
        assert len(piece) == len(completion)
        place = min(place, len(endings[story]) - len(piece))
        assert (piece == endings[story][place : place + len(piece)]).all()
    assert all(len(set(pieces.clusters[pieces.samples == sample])) == 20 for sample in range(3))


def test_planted_copies_are_found(corpus, rouge_py, tmp_path):
    data, _, validation = corpus
    honest = rows_of([cut_story(story, 0.5).reference for story in validation[40:60]], validation, 1)
    rows = planted.plant(honest, open_stories(data), each=15)
    write_rows(tmp_path / "out" / "planted" / "samples.jsonl", rows)
    assert rouge_py("out/planted", "--data", data)[0] == 0
    details = json.loads((tmp_path / "out" / "planted" / "rouge.json").read_text())["details"]
    found = planted.count_flagged(rows, details)
    passages = ("half of it, within an honest completion", "50 words of it, within an honest completion")
    for kind in ("verbatim", *passages, "names replaced", "names replaced by unknown ones", "sentences shuffled"):
        assert found[kind][0] == 15, kind
    assert found["verbatim"][1] >= 14  # another story may have all of its ending, too
    assert found["words shuffled"][0] == found["nothing of it, but 100 made-up words"][0] == 0


def test_both_splits_are_told_side_by_side(run, corpus, rouge_py):
    """Of training stories, this model knows the endings: no completion of a validation story says so."""
    data, training, _ = corpus
    endings = [cut_story(story, 0.5).reference for story in training[:10]]
    write_rows(
        run / "samples-train.jsonl", [row | dict(split="train", cut=0.4) for row in rows_of(endings, training, 1)]
    )
    code, printed = rouge_py(run, "--data", data)
    held_out, trained = (json.loads((run / name).read_text()) for name in ("rouge.json", "rouge-train.json"))
    both = trained["training_and_validation"]["ending_f"]
    assert code == 0 and both["completions"] == trained["figures"]["ending_f"]["completions"]
    assert both["completions"]["mean"] == 1 and both["difference"]["low"] > 0.5
    assert both["beside"]["mean"] == held_out["figures"]["ending_f"]["completions"]["mean"]
    assert trained["flagged"]["copy"]["completions"] == 10 and len(read_completions(run / "samples.jsonl")) == 60
    assert "of training stories" in printed.out
    assert "The splits were sampled with different cut: use the same to compare them" in printed.out
    assert f"{run}/flagged.txt (" in printed.out and f"{run}/flagged-train.txt (10 flagged)" in printed.out


def test_all_settings_and_several_runs(run, corpus, rouge_py, tmp_path):
    data, _, validation = corpus
    second = tmp_path / "out" / "second"
    rows = rows_of([cut_story(story, 0.5).reference for story in validation[50:60]], validation, 1)
    for row in rows:
        row["reference"] = None  # as of --prompts: no true endings then
    write_rows(second / "samples.jsonl", rows)
    code, printed = rouge_py(run, second, "--data", data, "--k", 4, "--counting", "clipped", "--tokens")
    assert code == 0 and "look at out/rouge.png" in printed.out.replace(f"{tmp_path}/", "")
    assert (tmp_path / "out" / "rouge.png").exists()
    facts = json.loads((second / "rouge.json").read_text())
    assert "ending_f" not in facts["figures"] and facts["flagged"]["template"]["completions"] == 0
    tokenizer = open_stories(data, by_tokens=True).tokenizer
    ids = [tokenizer.encode(story) for story in corpus[1]]
    for row, detail in zip(rows, facts["details"]):
        by_hand = max(rouge_k(tokenizer.encode(row["completion"]), story, 4, "clipped").f for story in ids)
        assert detail["f"] == pytest.approx(by_hand, abs=1e-12)


def test_a_run_that_was_sampled_at_several_temperatures(run, corpus, rouge_py, tmp_path, monkeypatch):
    """Each by itself, against the corpus of the run."""
    for name in ("temperature-0.5", "temperature-0"):
        (run / name).mkdir()
        shutil.copy(run / "samples.jsonl", run / name)
    assert rouge.with_samples(run) == [run]
    (run / "samples.jsonl").unlink()
    assert rouge.with_samples(run) == [run / "temperature-0", run / "temperature-0.5"]
    (run / "ckpt.pt").write_bytes(b"")
    monkeypatch.setattr(rouge_analysis, "corpus_of", {str(run): corpus[0]}.__getitem__)
    code, printed = rouge_py(run)
    assert code == 0 and "look at out/rouge.png" in printed.out.replace(f"{tmp_path}/", "")
    cold, warm = (json.loads((run / name / "rouge.json").read_text()) for name in ("temperature-0", "temperature-0.5"))
    assert cold["figures"] == warm["figures"] and cold["run"] == str(run / "temperature-0")


def test_one_completion_alone(corpus, rouge_py, tmp_path):
    data, _, validation = corpus
    write_rows(tmp_path / "out" / "one" / "samples.jsonl", rows_of([" They all went home."], validation, 1))
    code, printed = rouge_py("out/one", "--data", data)
    assert code == 0 and "Only one prompt: there is no held-out baseline" in printed.out
    assert "F with the nearest training story" in printed.out and "[" not in printed.out and "nan" not in printed.out
    text = (tmp_path / "out" / "one" / "rouge.json").read_text()
    assert "NaN" not in text and json.loads(text)["figures"]["training_f"]["difference"]["low"] is None


NO_WORD = '{"prompt_index": 0, "sample_index": 0, "completion": "…"}\n'
ONE_WORD = NO_WORD.replace("…", "A.")


@pytest.mark.parametrize(
    "content, args, message",
    [
        (None, (), "out/bad/samples.jsonl: no completions there; write some with `python sample.py --eval 50`"),
        ("{}\nnot json\n", (), "out/bad/samples.jsonl: no completions there"),
        ('{"prompt_index": 0, "sample_index": 0}\n', (), "no completions there"),
        (NO_WORD, (), "no completion has a word in it"),
        (ONE_WORD, ("--data", "no"), "no/meta.json: cannot be read as JSON (No such file"),
        (ONE_WORD, ("--data", "x" * 300), "File name too long"),
        ("", ("--k", "0"), "--k must be at least 1"),
        ("", ("--threshold", "2"), "--threshold must be above 0"),
    ],
)
def test_mistakes_get_one_line(corpus, rouge_py, tmp_path, content, args, message):
    (tmp_path / "out" / "bad").mkdir(parents=True)
    if content is not None:
        (tmp_path / "out" / "bad" / "samples.jsonl").write_text(content)
    code, printed = rouge_py("out/bad", *(args if "--data" in args else ("--data", corpus[0], *args)))
    complaint = printed.err.splitlines()[-1] if code == 2 else code
    assert message in complaint and "\n" not in complaint
    assert not (tmp_path / "out" / "bad" / "rouge.json").exists()


def test_without_data_it_asks_for_them(run, rouge_py):
    assert "name the training set, as in --data data/tinystories" in rouge_py(run)[0]
    assert "no run under out/ yet" in rouge_py()[0]


def with_file_size_limit(kib: int, run, data) -> subprocess.CompletedProcess:
    """rouge.py where no file may grow beyond this many KiB, as on a full disk."""
    program = f"ulimit -f {kib}; exec {sys.executable} {ROOT / 'rouge.py'} {run} --data {data}"
    return subprocess.run(["bash", "-c", program], capture_output=True, text=True)


@pytest.mark.slow
def test_a_full_disk_while_words_are_built_is_one_line(run, corpus, tmp_path):
    data = tmp_path / "data" / "tiny"
    shutil.copytree(corpus[0], data, ignore=shutil.ignore_patterns("words"))
    done = with_file_size_limit(1, run, data)
    assert done.returncode == 1 and not (data / "words").exists()
    assert done.stderr.splitlines()[-1].startswith(f"rouge.py: {data / 'words'}: cannot be written (")
    assert len(open_stories(data)) == len(corpus[1])


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_files_unchanged(run, corpus):
    open_stories(corpus[0])
    (run / "rouge.json").write_text("old")
    done = with_file_size_limit(8, run, corpus[0])
    assert done.returncode == 1 and (run / "rouge.json").read_text() == "old"
    assert done.stderr.splitlines()[-1].startswith("rouge.py: ") and "Traceback" not in done.stderr
    assert sorted(path.name for path in run.iterdir()) == ["rouge.json", "samples.jsonl"]
