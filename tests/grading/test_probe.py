"""probe.py: balanced sets, scores as transformers gives them, what it writes and what it
refuses."""

import collections
import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from grade_fixtures import read_by_transformers
from random_models import TOKENIZER, model_to_probe, save_run, trained_on

import probe
from nanostories.checkpoints.huggingface import save_hf
from nanostories.checkpoints.models import open_model
from nanostories.corpus.tokenizer import Tokenizer, gpt2
from nanostories.generation.backends import LocalBackend
from nanostories.grading.likelihood_judge import read_texts
from nanostories.grading.probes import PROBE_FILES, Probe, read_probes, result_tables
from nanostories.results import load
from nanostories.tables import read_table

OURS = {path.stem: read_probes(path) for path in PROBE_FILES}


@pytest.mark.parametrize("name", OURS)
def test_every_answer_is_right_as_often_as_each_of_its_rivals(name):
    """So a scorer that does not read the prompt, whatever it prefers, gets exactly one in each
    group right."""
    right = collections.defaultdict(collections.Counter)
    for one in OURS[name]:
        right[frozenset(one.answers)][one.answers[0]] += 1
    for answers, counts in right.items():
        assert counts.keys() == answers and len(set(counts.values())) == 1, counts


def mentioned(one: Probe, which: int) -> str | None:
    """The answer that the prompt mentions first (0) or last (-1), if it mentions all."""
    answers = "|".join(map(re.escape, one.answers))
    found = re.findall(rf"(?:{answers})\b", f" {one.prompt}")
    return found[which] if set(found) == set(one.answers) else None


@pytest.mark.parametrize("which", (0, -1))
@pytest.mark.parametrize("name, fewest, off", [("context", 40, 0), ("reasoning", 31, 0.1)])
def test_neither_what_is_mentioned_first_nor_last_is_right(name, fewest, off, which):
    right = [mentioned(one, which) == one.answers[0] for one in OURS[name] if mentioned(one, which)]
    assert len(right) >= fewest and sum(right) / len(right) == pytest.approx(0.5, abs=off)


@pytest.mark.parametrize(
    "tokenizer", [gpt2(), TOKENIZER, Tokenizer(gpt2().vocabulary["tokens"][:256])]
)
def test_prompt_and_answer_have_the_same_ids_apart_and_together(tokenizer):
    ids = tokenizer.encode
    for one in sum(OURS.values(), []):
        for answer in one.answers:
            assert ids(one.prompt) + ids(answer) == ids(one.prompt + answer)


GOOD = '{"prompt": "A", "right": " b", "wrong": [" c"]}\n'


@pytest.mark.parametrize(
    "text, message",
    [
        ("\n", ": no prompts in it"),
        (f"{GOOD}\n{{", ", line 3: "),
        (f"{GOOD}\udcff", ", line 2: "),  # a byte that is no UTF-8
        ('{"prompt": "A ", "right": " b", "wrong": [" c"]}', ", line 1: "),
        ('{"prompt": "A", "right": "b", "wrong": [" c"]}', ", line 1: "),
        ('{"prompt": "A", "right": " b", "wrong": [" c", " b"]}', ", line 1: "),
    ],
)
def test_a_wrong_line_is_named(tmp_path, text, message):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=rf"mine.jsonl{message}.+\Z"):
        read_probes(path)


def test_leads_are_those_of_transformers(tmp_path):
    model = model_to_probe()
    save_hf(model, tmp_path, TOKENIZER)
    nats = read_by_transformers(tmp_path)
    backend = LocalBackend(model, TOKENIZER, [TOKENIZER.end_of_text], batch_size=3)
    probes = OURS["reasoning"][:12]
    readings = [("", one.prompt) for one in probes]  # as pairs of sentences are read
    for one in probes:
        readings += [(one.prompt, answer) for answer in one.answers]
    ours = read_texts("m", backend, readings, ends=False)
    for one in probes:
        alone = sum(nats("<|endoftext|>", one.prompt))
        assert ours["", one.prompt].sum() == pytest.approx(alone, abs=1e-3)
        found = probe.graded(one, ours)
        sums = [sum(nats(f"<|endoftext|>{one.prompt}", answer)) for answer in one.answers]
        right, *wrong = (total / len(text) for total, text in zip(sums, one.answers))
        lead = float(found["lead"])
        assert lead == pytest.approx(right - max(wrong), abs=2e-4)
        assert found["p"] == pytest.approx(math.exp(sums[0]), rel=1e-3)
        assert found["rank"] == 1 + sorted([right, *wrong], reverse=True).index(right)
        verdicts = {"right": lead > 0, "nearly": -0.1 <= lead <= 0, "wrong": lead < -0.1}
        assert verdicts[found["verdict"]]


@pytest.fixture
def probe_py(command_line, tmp_path):
    return command_line(probe, tmp_path)


@pytest.fixture
def probed(probe_py, out):
    """Runs probe.py, which must succeed -> (tables of out/NAME.json by their kind, rows of its
    .csv)."""

    def call(flags: str, name: str = "probe"):
        assert probe_py(flags)[0] == 0
        tables = {table.facts["kind"]: table.rows for table in load(out / f"{name}.json").tables}
        return tables, read_table(out / f"{name}.csv")

    return call


@pytest.fixture
def out(out):
    """out/ with a run that has a fixed preference for some words over others, whatever the prompt,
    and a random one."""
    fixed = model_to_probe()
    torch.nn.init.zeros_(fixed.ln_f.weight)  # its bias alone meets the head
    save_run(out / "fixed", fixed)
    save_run(out / "deeper" / "random", model_to_probe())
    return out


def test_a_fixed_preference_scores_exactly_chance(out, probed):
    """Whatever it prefers."""
    tables, rows = probed("out --max_new_tokens 3")
    assert len(rows) == sum(map(len, OURS.values())) and (out / "probe.html").exists()
    _, fixed, chance = tables["shares"]
    for name in OURS:
        assert fixed[name][0] == pytest.approx(chance[name])
    tables_of_pairs, rows = probed("out --pairs", "grammar")
    assert len(rows) == 13 * 40 and (out / "grammar.svg").exists()
    assert [row["fixed"][0] for row in tables_of_pairs["pairs"]] == [0.5] * (1 + 13)
    for found in (tables, tables_of_pairs):
        assert {row["run"] for row in found["differences"]} == {"deeper/random minus fixed"}


def test_groups_are_counted_and_models_are_compared_over_them():
    """Two prompts with the same answers are one trial."""
    probes = []
    for i in range(20):
        probes += [
            Probe("facts", "", (f" a{i}", f" b{i}")),
            Probe("facts", "", (f" b{i}", f" a{i}")),
        ]
    right = {"always": [True] * 40, "half": [True, False] * 20}
    shares, differences = result_tables(probes, right)
    always, half, chance = (row["facts"] for row in shares.rows)
    assert half[0] == chance == 0.5
    assert always[1] < 0.9  # of 20, not of 40
    (difference,) = differences.rows
    assert difference["difference"][0] == 0.5 and difference["p (Holm)"] < 1e-4


HOSTILE = "<script>document.title = 'broken'</script> & a \"cat\""


def test_plain_prompts_are_continued_and_not_judged(out, probed, tmp_path):
    """The result lies where all runs are."""
    (tmp_path / "mine.txt").write_text(f"Once upon\n{HOSTILE}\n")
    (tmp_path / "more.txt").write_text("There was\n")
    flags = "out/deeper/random out/fixed --prompts mine.txt more.txt --max_new_tokens 4"
    tables, rows = probed(flags, "probe-mine-more")
    assert tables == {} and [row["prompt"] for row in rows] == ["Once upon", HOSTILE, "There was"]
    assert all(row["fixed greedy"] and not row["fixed verdict"] for row in rows)
    assert HOSTILE not in (out / "probe-mine-more.html").read_text()


def test_prompts_are_continued_to_the_end_of_their_sentence():
    def complete(wanted, sampling):
        for key, prompt in wanted.items():
            yield key, texts[prompt], True

    texts = {
        "Tom had": ' a ball. "No!" said Mia.',
        'Ben said, "Stop': '! I am here," and sat. He ran.',
        "Here": " it breaks off",
        "There": "",
    }
    probes = [Probe("mine", prompt) for prompt in texts]
    found = probe.continuations("m", SimpleNamespace(complete=complete), probes, 64)
    assert [*found.values()] == [" a ball.", '! I am here," and sat.', " it breaks off", ""]


def test_prompts_of_ones_own_with_answers(probed, tmp_path):
    own = dict(prompt=HOSTILE, right=" <b>", wrong=[" <i>", " a b"])
    (tmp_path / "mine.jsonl").write_text(f"{json.dumps(own)}\n\n{GOOD}")
    flags = "out --prompts mine.jsonl --max_new_tokens 2 --out out/new/place"
    tables, (first, _) = probed(flags, "new/place/probe-mine")
    assert len(tables["shares"]) == 2  # no chance
    assert (first["right"], first["wrong"]) == (" <b>", " <i> | a b")


def test_mistakes_are_named(out, probe_py, tmp_path):
    far = {"prompt": "far " * 140 + "a", "right": " b", "wrong": [" c"]}
    (tmp_path / "long.jsonl").write_text(GOOD + json.dumps(far))
    (tmp_path / "empty").mkdir()
    for flags, word in (
        ("empty", "empty: no run"),
        ("--model api:gpt-3.5-turbo", "log-likelihoods"),
        ("--model api:gpt-3.5-turbo --pairs", "log-likelihoods"),
        ("--model out/fixed --prompts long.jsonl", "context"),
    ):
        code, printed = probe_py(flags)
        assert word in code and printed.out == ""
    assert not list(tmp_path.rglob("probe*.*"))


def test_runs_that_learned_other_text_are_known(instruct_data_dir, tmp_path):
    for corpus, trait in (("builtin", ""), ("builtin-instruct", "under headers"), ("gone", "")):
        save_run(tmp_path / corpus, model_to_probe(), **trained_on(instruct_data_dir, corpus))
        model = open_model(str(tmp_path / corpus))
        assert probe.warnings_of({"a": model}, prompts_are_ours=False) == []
        warnings = probe.warnings_of({"a": model}, prompts_are_ours=True)
        assert "".join(warnings).partition(": ")[2] == trait


def test_an_endpoint_continues_plain_prompts_only(endpoint, probe_py, tmp_path):
    (tmp_path / "mine.txt").write_text("Once upon\nOne day\n")

    def answer(number, request):
        prompt = request["messages"][-1]["content"]
        if prompt == "Once upon":  # one prompt, which leaves the other
            return "status", 400, {}, "filtered"
        return "say", f"after {prompt}"

    endpoint.fault = answer
    code, printed = probe_py("--model api:teacher --prompts mine.txt")
    assert code == 0 and "1 requests failed" in printed.err
    rows = read_table(tmp_path / "out" / "api--teacher" / "probe-mine.csv")
    assert [row["api:teacher greedy"] for row in rows] == ["", " after One day"]
