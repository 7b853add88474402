"""Stories told to order: headers, what is learned under them, what is asked for, and whether it is there."""

import csv
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, SAMPLE, arguments, log_of, settings
from file_server import serve
from forks import fork_ranks
from sample_fixtures import rows_of
from story_files import prepare_error, run_prepare, stories_in, write_stories
from test_distributed import assert_same_curve

import instruct
import train as train_module
from checkpoints.checkpoint import load_run
from corpus import builtin_stories, instruct_headers, sources
from corpus.bad_endings import ends_badly
from corpus.instruct_headers import Headed, story_tokens
from corpus.preparation import prepare_builtin
from corpus.token_files import load_meta, load_tokens
from corpus.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, cut, gpt2
from generation.prompts import Prompt, evaluation_prompts
from train import train
from training.config import ConfigError, TrainConfig
from training.data_order import TokenStream
from training.evaluation import evaluate

SEEDS = SAMPLE.parent / "seed-prompts" / "instruct.json"

# ---- Headers ----

BLOCK = """Features: Dialogue, Twist
Words: jump, frog, red
Story:

A red frog jumped.
"Oh!" it said."""


def test_a_header_is_read_and_written():
    headed = instruct_headers.read(BLOCK)
    assert headed == Headed(
        dict(features="Dialogue, Twist", words="jump, frog, red"), 'A red frog jumped.\n"Oh!" it said.'
    )
    assert list(headed.fields) == ["features", "words"] and str(headed) == BLOCK
    assert headed.instruction == dict(words=["jump", "frog", "red"], features=["Dialogue", "Twist"])
    assert headed.only(["words"]).header == "Words: jump, frog, red\nStory:"


@pytest.mark.parametrize(
    "text",
    [
        "Summary: A frog\nruns.\nStory: \n\nIt ran.\nAway.",  # on two lines
        "Summary: No.\nSummary: A frog runs.\nStory:\nIt ran.\nAway.",  # twice
        "Story: \n\nIt ran.\nAway.\n\nSummary: A frog runs.",  # below the story
        "Story: It ran.\nAway.\nSummary: A frog runs.\n",  # and the story behind the colon
    ],
)
def test_oddities_of_the_published_files(text):
    assert instruct_headers.read(text) == Headed(dict(summary="A frog runs."), "It ran.\nAway.")


@pytest.mark.parametrize(
    "text", ["", "It ran.", "Words: a\nIt ran.", "oks. He ran.\nSummary: A.\nStory:\nHe ran.", "Story: It."]
)
def test_what_has_no_header(text):
    assert instruct_headers.read(text) is None


def test_a_story_may_say_story():
    headed = instruct_headers.read("Words: a\nStory:\n\nHe read:\nStory: one.\nThe end.")
    assert headed.story == "He read:\nStory: one.\nThe end."


def test_published_headers():
    if not SEEDS.exists():
        pytest.skip("needs ../shared/data/seed-prompts")
    asked = [Prompt(text).instruction for text in json.loads(SEEDS.read_text())]
    assert len(asked) == 50 and all(asked)
    assert all(len(words) == 3 for words in (what["words"] for what in asked if "words" in what))
    assert {feature for what in asked for feature in what.get("features", ())} == set(builtin_stories.FEATURES)


def test_every_choice_of_fields_is_equally_likely_in_any_order():
    rng, fields = random.Random(0), dict.fromkeys(instruct_headers.FIELDS, "x")
    drawn = [tuple(instruct_headers.draw_fields(fields, rng)) for _ in range(6000)]
    choices = Counter(frozenset(names) for names in drawn)
    assert len(choices) == 15 and all(300 < count < 500 for count in choices.values())  # 400 ± 5 standard deviations
    assert len(set(drawn)) == sum(math.comb(4, k) * math.factorial(k) for k in range(1, 5))
    assert all(
        {"words", "summary"} <= instruct_headers.draw_fields(fields, rng, ("words", "summary")).keys()
        for _ in range(100)
    )


def test_headers_of_the_builtin_stories_are_true():
    for story in builtin_stories.stories(300, seed=4):
        text = instruct_headers.add_builtin_header(story)
        assert text == instruct_headers.add_builtin_header(story)
        headed = instruct_headers.read(text)
        assert str(headed) == text and headed.story == story.text
        known = dict(
            words=list(story.words), features=list(story.features), summary=story.summary, sentence=story.sentence
        )
        assert headed.instruction.items() <= known.items()


def test_what_can_be_read_off_any_story(real_stories):
    seen = set()
    for text in real_stories:
        headed = instruct_headers.read(instruct_headers.add_header(text))
        seen |= headed.fields.keys()
        assert headed.story == text
        asked = headed.instruction
        assert all(instruct.pattern(word).search(text) for word in asked.get("words", ()))
        assert asked.get("sentence", "") in " ".join(text.split())
        assert "features" not in asked or asked["features"] == ["Dialogue"] and re.search('["“]', text)
        assert instruct_headers.add_header(str(headed)) == str(headed)  # one that is there stays
    assert seen == {"words", "features", "sentence"}


def test_words_and_summary_are_taken_apart_by_a_fair_coin():
    both = dict(words="a", sentence="b", summary="c")
    left = Counter(tuple(Headed(both, f"Story {i}.").without_words_or_summary().fields) for i in range(1000))
    assert left.keys() == {("words", "sentence"), ("sentence", "summary")} and 420 < left["words", "sentence"] < 580
    one = Headed(dict(words="a", features="b"), "A story.")
    assert one.without_words_or_summary() == one


@pytest.mark.parametrize("vocab_size", [257, 400, 50257])
def test_the_tokens_of_stories(vocab_size):
    """Told from the text alone; a vocabulary of 257 spells "Story:" in bytes."""
    told = ["It ran.\nStory: it.\n\nStory:\n\nAway.", "A.", "Words: no.", "“ó” 🐉"]
    texts = [str(Headed(dict(words="a, b", summary=f"{i}. Story: c"), story)) for i, story in enumerate(told)]
    counts = np.bincount(gpt2().encode(" ".join(texts)), minlength=GPT2_VOCAB_SIZE)
    tokenizer = gpt2() if vocab_size == GPT2_VOCAB_SIZE else cut(counts, vocab_size)
    tokens = tokenizer.encode_stories(texts)
    assert tokenizer.decode(tokens[story_tokens(tokens, tokenizer)]) == "".join(f"\n\n{t}<|endoftext|>" for t in told)
    whole = story_tokens(tokens, tokenizer)
    end = np.flatnonzero(tokens == tokenizer.end_of_text)[1] + 1  # where the third header begins
    for n in (0, 1, end - 2, end, end + 3):
        assert story_tokens(tokens[:n], tokenizer).tolist() == whole[:n].tolist()
    assert not story_tokens(tokenizer.encode_stories(["No header.", "None."]), tokenizer).any()


# ---- Corpora ----


def test_instruct_from_a_mirror(tmp_path, monkeypatch):
    """The published files' layout and slips: a fragment first, a summary below, bytes cut from a quotation mark."""
    block = "Words: {0}, b, c\nRandom sentence: It is {0}.\nStory: \n\nIt is {0}.\nOh!\n"
    train = [block.format(i) for i in range(40)] + [
        "Features: Twist\nStory: \n\nIt ran.\n\nSummary: It \xe2\x80runs.\n"
    ]
    val = ["ooks. He ran.\nSummary: He ran.\n", *(block.format(i).replace("Words", "Summary") for i in range(30, 50))]
    text = "<|endoftext|>\n".join([*val, ""])
    with serve() as server:
        server.content = text.encode()
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        (tmp_path / "download").mkdir()
        name = tmp_path / "download" / "TinyStories-Instruct-train.txt"
        name.write_bytes("<|endoftext|>\n".join([*train, ""]).encode("latin-1"))
        for corpus in ("instruct", "instruct-ood"):
            run_prepare(corpus, "--vocab_size", 400, "--data_dir", tmp_path)
    address = "/datasets/roneneldan/TinyStoriesInstruct/resolve/main/TinyStories-Instruct-valid.txt"
    assert {request["path"] for request in server.requests} == {address}
    told = stories_in(tmp_path / "instruct", "train")
    assert told[0] == "Words: 0, b, c\nRandom sentence: It is 0.\nStory:\n\nIt is 0.\nOh!"
    assert told[-1] == "Features: Twist\nSummary: It \ufffdruns.\nStory:\n\nIt ran."
    assert len(told) == 31  # the ten stories that are in val are not here, though their headers are others
    assert stories_in(tmp_path / "instruct", "val")[0].startswith(
        "Summary: 30, b, c\nRandom sentence: It is 30.\nStory:"
    )
    cleaning = load_meta(tmp_path / "instruct")["cleaning"]
    assert cleaning["empty dropped"] == 1 and cleaning["validation stories dropped from train"] == 10
    assert load_meta(tmp_path / "instruct")["headers"] == sources.ANY
    assert load_meta(tmp_path / "instruct-ood")["headers"] == sources.OOD


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """data/builtin-instruct, data/builtin-instruct-ood, and data/builtin"""
    directory = tmp_path_factory.mktemp("data")
    for corpus in ("builtin", "builtin-instruct", "builtin-instruct-ood"):
        prepare_builtin(directory, n_stories=700, vocab_size=1000, corpus=corpus, seed=2)
    return directory


def test_builtin_under_headers(data_dir):
    """The same stories in the same splits as without headers; out of distribution as it says."""
    for corpus in ("builtin-instruct", "builtin-instruct-ood"):
        for split in ("train", "val"):
            headed = [instruct_headers.read(text) for text in stories_in(data_dir / corpus, split)]
            assert [one.story for one in headed] == stories_in(data_dir / "builtin", split)
            both = sum({"words", "summary"} <= one.fields.keys() for one in headed) / len(headed)
            if corpus == "builtin-instruct":
                assert 0.18 < both < 0.36  # 4 of 15
            else:
                assert both == (split == "val")
    words = [["words" in instruct_headers.read(text).fields for text in stories_in(data_dir / name, "train")]
             for name in ("builtin-instruct", "builtin-instruct-ood")]  # fmt: skip
    assert [abs(np.mean(is_there) - share) < 0.07 for is_there, share in zip(words, (8 / 15, 1 / 2))]


def test_your_own_stories_get_headers(tmp_path):
    texts = [
        f'One day, {name} saw a red ball in bed {i}. "Jump!" it said.' for i in range(50) for name in ("Tom", "Mia")
    ]
    given = "Summary: A given one.\nStory:\n\nIt ran."
    path = write_stories(tmp_path / "t.txt", [*texts, given])
    run_prepare(
        "--input", path, "--headers", "--name", "x", "--vocab_size", 400, "--data_dir", tmp_path, "--val_share", 0.2
    )
    told = stories_in(tmp_path / "x", "train") + stories_in(tmp_path / "x", "val")
    assert given in told and sorted(instruct_headers.read(text).story for text in told) == sorted([*texts, "It ran."])
    assert load_meta(tmp_path / "x")["headers"] == sources.ANY
    with pytest.raises(SystemExit):
        run_prepare("builtin", "--headers")
    empty = write_stories(tmp_path / "e.txt", ["", "\n"])
    assert "no story left" in prepare_error("--input", empty, "--headers", "--name", "y", "--data_dir", tmp_path)


# ---- What is learned ----


def config_for(data_dir, directory, **changes) -> dict:
    return settings(data_dir, directory) | dict(data="builtin-instruct", loss_on="story", eval_tokens=4000) | changes


@pytest.fixture(scope="module")
def stream(data_dir):
    """The training tokens of builtin-instruct, which of them count, and the tokenizer."""
    tokens = load_tokens(data_dir / "builtin-instruct", "train")
    tokenizer = Tokenizer(load_meta(data_dir / "builtin-instruct")["gpt2_ids"])
    return tokens, story_tokens(tokens, tokenizer), tokenizer


def test_only_stories_are_targets(stream):
    tokens, counted, tokenizer = stream
    end = int(np.flatnonzero(tokens == tokenizer.end_of_text)[0])
    inputs, targets = TokenStream(tokens, 400, torch.device("cpu"), counted).read(np.array([end]))
    text, story = tokenizer.decode(inputs[0].tolist()), tokenizer.decode(targets[0][targets[0] >= 0].tolist())
    headed = instruct_headers.read(text.split("<|endoftext|>")[1])
    assert story.startswith(f"\n\n{headed.story}<|endoftext|>\n\n")  # then the next one, its header left out
    assert (targets[0][: len(tokenizer.encode(headed.header))] == -100).all()


def test_micro_batches_count_by_their_targets(stream):
    """The mean over a step is that over its targets, however it is divided; headers alone count nothing."""
    tokens, counted, tokenizer = stream
    source = TokenStream(tokens, 8, torch.device("cpu"), counted)
    starts = np.arange(24) * 8
    losses = torch.rand(len(tokens))
    _, targets = source.read(starts)
    taken = losses[: 24 * 8].view(24, 8)
    expected = taken[targets >= 0].mean()
    n = (targets >= 0).sum(1)
    assert (n == 0).any()
    for ranks, micro_batches in ((1, 1), (1, 24), (4, 1), (2, 3), (24, 1)):
        shares = source.loss_weights(starts.reshape(ranks, micro_batches, -1))
        assert shares.shape == (ranks, micro_batches) and shares.mean() == pytest.approx(1)
        parts = [
            taken[rows][targets[rows] >= 0].sum() / max(1, (targets[rows] >= 0).sum())
            for rows in np.arange(24).reshape(ranks * micro_batches, -1)
        ]
        mean = sum(part * share for part, share in zip(parts, shares.flatten())) / shares.size
        assert mean == pytest.approx(expected.item(), rel=1e-5)
    assert (TokenStream(tokens, 8, torch.device("cpu")).loss_weights(starts.reshape(2, 3, 4)) == 1).all()
    nothing = TokenStream(tokens, 8, torch.device("cpu"), np.zeros(len(tokens), dtype=bool))
    assert (nothing.loss_weights(starts.reshape(2, 3, 4)) == 0).all()


@pytest.mark.parametrize("size, changes", [(2, dict(batch_size=2)), (4, dict(optimizer="muon", align_stories=True))])
def test_the_same_run_on_more_processes(data_dir, tmp_path, size, changes):
    """Windows of 16 tokens: many hold nothing but header, and micro-batches have anything from none to all."""
    config = config_for(data_dir, tmp_path, **changes)
    reference, _ = train(TrainConfig(**config | dict(name="reference")), resume=False)
    assert all(math.isfinite(float(row["train_loss"])) for row in log_of(reference))
    said = fork_ranks(size, arguments(config), tmp_path / "said")
    assert [text.split()[-1] for text in said] == ["0"] * size, said
    assert_same_curve(tmp_path / "out" / "run", reference)
    assert "--words" in said[0]


def test_divided_otherwise_it_is_the_same_run(data_dir, tmp_path):
    runs = [
        train(
            TrainConfig(**config_for(data_dir, tmp_path, name=f"{n}", batch_size=8 // n, grad_accum_steps=n)),
            resume=False,
        )
        for n in (1, 8)
    ]
    assert_same_curve(runs[1][0], runs[0][0])


def test_validation_counts_stories_alone_for_every_run(data_dir, tmp_path):
    """Against logits and cross-entropy, story by story."""
    losses = {}
    for loss_on in ("all", "story"):
        config = TrainConfig(
            **config_for(data_dir, tmp_path, name=loss_on, loss_on=loss_on, block_size=400, batch_size=2)
        )
        run, _ = train(config, resume=False)
        losses[loss_on] = float(log_of(run)[-1]["train_loss"])
    model, tokenizer = load_run(run)
    val = load_tokens(data_dir / "builtin-instruct", "val")
    ends = np.flatnonzero(val == tokenizer.end_of_text)[:6]
    val, nats, n_bytes, n = np.array(val[: ends[-1] + 1]), 0.0, 0, 0
    for start, end in zip(ends, ends[1:]):
        ids = torch.from_numpy(val[start : end + 1].astype(np.int64))
        n_header = len(tokenizer.encode(instruct_headers.read(tokenizer.decode(ids[1:-1].tolist())).header))
        each = F.cross_entropy(model(ids[None, :-1])[0][0], ids[1:], reduction="none")[n_header:]
        nats, n = nats + each.sum().item(), n + len(each)
        n_bytes += len(tokenizer.decode(ids[1 + n_header : -1].tolist()).encode())
    windows = ends[:-1]  # each story read from its beginning
    stream = TokenStream(np.append(val, np.zeros(400, np.uint16)), 400, torch.device("cpu"),
                         np.append(story_tokens(val, tokenizer), np.zeros(400, bool)))  # fmt: skip
    result = evaluate(model, stream, windows, tokenizer, torch.no_grad)
    assert result["val_loss"] == pytest.approx(nats / n, rel=1e-4)
    assert result["bpb"] == pytest.approx(nats / n_bytes / math.log(2), rel=1e-4)
    assert losses["all"] != losses["story"]


def test_no_headers_no_story_loss(tmp_path, data_dir):
    config = config_for(data_dir, tmp_path, data="builtin")
    with pytest.raises(ConfigError, match="builtin: its stories have no headers, which loss_on=story would leave out"):
        train(TrainConfig(**config), resume=False)
    with pytest.raises(ConfigError, match="takes loss_on=all"):
        TrainConfig(loss_on="story", contrast="margin")
    with pytest.raises(ConfigError, match="loss_on must be one of all, story"):
        TrainConfig(loss_on="header")


# ---- What is asked ----


def test_headers_of_validation_stories_are_prompts(data_dir):
    told = [instruct_headers.read(text) for text in stories_in(data_dir / "builtin-instruct-ood", "val")]
    prompts = evaluation_prompts(data_dir / "builtin-instruct-ood", 5, 0.5)
    assert [prompt.text + prompt.reference for prompt in prompts] == [str(one) for one in told[1:6]]
    assert all(prompt.text.endswith("\nStory:") for prompt in prompts)
    asked = evaluation_prompts(data_dir / "builtin-instruct-ood", 4, 0.5, ["words", "summary,words"])
    assert [set(prompt.instruction) for prompt in asked] == [{"words"}, {"words", "summary"}] * 4
    assert [prompt.reference for prompt in asked[::2]] == [prompt.reference for prompt in prompts[:4]]
    with pytest.raises(ValueError, match="stories whose header has sentence, words, --eval 10000 needs 10001"):
        evaluation_prompts(data_dir / "builtin-instruct", 10000, 0.5, ["words,sentence"])
    with pytest.raises(ValueError, match="has 1 stories whose header has words"):
        evaluation_prompts(data_dir / "builtin", 3, 0.5, ["words"])


@pytest.fixture
def trained(data_dir, tmp_path, monkeypatch, capsys):
    """out/run of a model with a context that holds header and story, as train.py's command line leaves it."""
    monkeypatch.chdir(tmp_path)
    config = config_for(data_dir, tmp_path, block_size=512, max_steps=2, eval_interval=2, batch_size=1, out_dir="out")
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments(config | dict(out_dir=str(tmp_path / "out")))])
    train_module.main()
    return tmp_path / "out" / "run", capsys.readouterr().out


def test_a_run_ends_with_a_story_to_order_and_says_how_to_ask(trained):
    _, said = trained
    assert "\nWords: hide, fox, little\nStory:" in said and '--words "jump, frog, red"' in said.splitlines()[-1]


def test_asked_for_by_command_line(trained, sample_py, data_dir):
    run, _ = trained
    asked = ("--words", "jump,frog , red", "--features", "Dialogue, Twist", "--summary", "It\nran.", "--n", "1")
    code, printed = sample_py(*asked, "--max_new_tokens", "3")
    header = "Words: jump, frog, red\nFeatures: Dialogue, Twist\nSummary: It ran.\nStory:"
    assert code == 0 and printed.out.startswith(header)
    code, printed = sample_py("--sentence", "It ran.", "--out", "out/x.jsonl", "--n", "2", "--max_new_tokens", "3")
    assert (
        code == 0 and [row["instruction"] for row in rows_of(run.parent / "x.jsonl")] == [dict(sentence="It ran.")] * 2
    )
    for args, complaint in (
        (("--features", "Dialog"), "no such feature: Dialog; known are Dialogue, Twist, BadEnding, MoralValue"),
        (("--words", "a", "--eval", "3"), "--words make a prompt: leave out --prompt, --prompts and --eval"),
        (("--eval", "3", "--ask", "word"), "--ask must be words, features, summary, sentence"),
    ):
        code, printed = sample_py(*args)
        assert code == 2 and complaint in printed.err.splitlines()[-1]


def test_a_model_behind_an_endpoint_is_told_what_a_header_is(endpoint, sample_py):
    endpoint.fault = lambda number, request: ("say", "A frog.")
    assert sample_py("--model", "api:m", "--words", "frog", "--n", "1")[0] == 0
    system, user = endpoint.requests[0]["messages"]
    assert user["content"] == "Words: frog\nStory:" and "breaks off" not in system["content"]


# ---- Whether it is there ----


THERE = """run: He RAN.|run: They are running|child: children|happy: the happiest of all|red: redder|nice: nicer
carry: carried|teach: he taught|admit: She admitted it|leaf: leaves|x-ray: an X-ray!|ice cream: two ice creams
hat: that hats|be: she was|good: the best|knife: knives|box: boxes"""
NOT_THERE = "run: a runt|hat: that|be: bee|art: party|ice cream: ice cold cream"


@pytest.mark.parametrize("texts, there", [(THERE.replace("\n", "|"), True), (NOT_THERE, False)])
def test_words_are_found_however_inflected(texts, there):
    for word, text in (row.split(": ") for row in texts.split("|")):
        assert (instruct.pattern(word).search(text) is not None) == there, text


def test_the_only_bad_endings_that_a_rule_knows_are_the_builtin_ones():
    told = list(builtin_stories.stories(3000, seed=9))
    assert [ends_badly(story.text) for story in told] == ["BadEnding" in story.features for story in told]
    assert 200 < sum(ends_badly(story.text) for story in told) < 600


def samples(path, prompts, completions, n=1):
    """A samples.jsonl as sample.py writes it: `completions` per prompt, n at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        dict(prompt_index=i, sample_index=j, completion=told, finished=True) | prompt.row()
        for i, (prompt, of_it) in enumerate(zip(prompts, completions))
        for j, told in enumerate(itertools.islice(of_it, n))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def prompts(data_dir):
    return evaluation_prompts(data_dir / "builtin-instruct", 150, 0.5)


def figures(path) -> dict:
    return {line.measure: line for line in instruct.measure(*instruct.read_instructed(path))}


def test_true_stories_follow_and_stories_for_others_do_not(prompts, tmp_path):
    true = [[prompt.reference] for prompt in prompts]
    samples(tmp_path / "true" / "samples.jsonl", prompts, true)
    samples(tmp_path / "shifted" / "samples.jsonl", prompts, true[1:] + true[:1])
    follows, shifted = figures(tmp_path / "true"), figures(tmp_path / "shifted")
    assert follows.keys() == shifted.keys() and len(follows) == 12
    for name, line in follows.items():
        assert line.true_stories == line.share == shifted[name].true_stories
        asked = not name.endswith("not asked for")
        assert line.share >= 0.95 or not asked
        if asked and "dialogue" not in name:
            assert max(line.other_stories, shifted[name].share) < 0.35
    assert list(follows)[0].startswith("words") and follows["summary (no words)"].chance == pytest.approx(
        1 / 80, abs=0.005
    )
    assert follows["sentence, verbatim"].prompts == sum("sentence" in prompt.instruction for prompt in prompts)


def test_a_prompt_counts_once_and_silence_fails(prompts, tmp_path):
    """Half of the completions of each prompt are true, the others are empty."""
    samples(tmp_path / "half" / "samples.jsonl", prompts, ([p.reference, ""] for p in prompts), n=2)
    samples(tmp_path / "once" / "samples.jsonl", prompts, ([""] for p in prompts))
    half, once = figures(tmp_path / "half"), figures(tmp_path / "once")
    line = half["words (no summary): all"]
    assert line.share == 0.5 and line.prompts == once["words (no summary): all"].prompts
    assert once["words (no summary): all"].share == 0 and once["dialogue"].share == 0
    assert once["summary (no words)"].share == pytest.approx(once["summary (no words)"].chance)


def test_what_no_rule_can_tell_is_left_out(tmp_path):
    """A bad ending of another writer; a model's own answer to a prompt of the user's."""
    asked = Prompt("Features: BadEnding\nStory:", "\n\nThen the moon fell down.")
    samples(tmp_path / "real.jsonl", [asked, Prompt("Words: a\nStory:")], [["It was sad."], ["A dog."]])
    lines = figures(tmp_path / "real.jsonl")
    assert lines.keys() == {"words (no summary): all", "words (no summary): each"}
    assert lines["words (no summary): all"].true_stories is None


def test_command_line(prompts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        samples(tmp_path / "out" / name / "samples.jsonl", prompts[:20], [[prompt.reference] for prompt in prompts])
    monkeypatch.setattr(sys, "argv", ["instruct.py", "out/a", "out/b"])
    instruct.main()
    printed = capsys.readouterr().out
    assert printed.count("\n  out/a ") == printed.count("\n  out/b ") > 6 and "wrote out/instruct.csv" in printed
    with (tmp_path / "out" / "instruct.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {"out/a", "out/b"} and all(
        0 <= float(row["low"]) <= float(row["high"]) for row in rows
    )
    assert (tmp_path / "out" / "instruct.png").stat().st_size > 10_000
    (tmp_path / "out" / "a" / "samples.jsonl").write_text('{"prompt_index": 0, "sample_index": 0, "prompt": "Once"}\n')
    for path in ("out/a", "out/none"):
        monkeypatch.setattr(sys, "argv", ["instruct.py", path])
        with pytest.raises(SystemExit) as stop:
            instruct.main()
        assert f"{path}" in stop.value.code and "\n" not in stop.value.code


def test_ties_do_not_depend_on_the_order_of_sets():
    code = "import instruct; from corpus.builtin_stories import stories; told = list(stories(60))\n"
    code += "s = instruct.Summaries([t.summary for t in told])\n"
    code += "print([s.share(a.summary, instruct.content(b.text)) for a in told for b in told])"
    command = [sys.executable, "-c", code]
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "12"]
    one, other = (subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True) for env in environments)
    assert one.stdout == other.stdout
