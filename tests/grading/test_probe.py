"""probe.py: balanced sets, scores as transformers gives them, what it writes and what it
refuses."""

import collections
import json
import math
import re

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

OURS = {path.stem: read_probes(path, path.stem) for path in PROBE_FILES}


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
    places = {}
    for answer in one.answers:
        found = re.finditer(rf"{re.escape(answer)}\b", " " + one.prompt)
        places[answer] = [match.start() for match in found]
    if all(places.values()):
        choose = max if which else min
        return choose(places, key=lambda answer: places[answer][which])


@pytest.mark.parametrize("which", (0, -1))
@pytest.mark.parametrize("name, fewest, off", [("context", 40, 0), ("reasoning", 31, 0.1)])
def test_neither_what_is_mentioned_first_nor_last_is_right(name, fewest, off, which):
    right = [mentioned(one, which) == one.answers[0] for one in OURS[name] if mentioned(one, which)]
    assert len(right) >= fewest and sum(right) / len(right) == pytest.approx(0.5, abs=off)


@pytest.mark.parametrize(
    "tokenizer", [gpt2(), TOKENIZER, Tokenizer(gpt2().vocabulary["tokens"][:256])]
)
def test_prompt_and_answer_have_the_same_ids_apart_and_together(tokenizer):
    for one in sum(OURS.values(), []):
        for answer in one.answers:
            together = tokenizer.encode(one.prompt + answer)
            assert tokenizer.encode(one.prompt) + tokenizer.encode(answer) == together


GOOD = '{"prompt": "A", "right": " b", "wrong": [" c"]}\n'


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "\udcff",  # a byte that is no UTF-8
        '{"prompt": "A ", "right": " b", "wrong": [" c"]}',
        '{"prompt": "A", "right": "b", "wrong": [" c"]}',
        '{"prompt": "A", "right": " b", "wrong": [" c", " b"]}',
    ],
)
def test_a_wrong_line_is_named(tmp_path, line):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(f"{GOOD}\n{line}\n{GOOD}".encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"mine.jsonl, line 3: .+\Z"):
        read_probes(path, "mine")


def test_leads_are_those_of_transformers_whatever_the_batch(tmp_path):
    model = model_to_probe()
    save_hf(model, tmp_path, TOKENIZER)
    nats = read_by_transformers(tmp_path)
    probes = OURS["reasoning"][:12]
    for batch_size in (1, 50):
        backend = LocalBackend(model, TOKENIZER, [TOKENIZER.end_of_text], batch_size)
        readings = [(one.prompt, answer) for one in probes for answer in one.answers]
        found_nats = read_texts("m", backend, readings, ends=False)
        for one in probes:
            found = probe.graded(one, found_nats)
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
def out(tmp_path):
    """out/ with a run that has a fixed preference for some words over others, whatever the prompt,
    and a random one."""
    fixed = model_to_probe()
    torch.nn.init.zeros_(fixed.ln_f.weight)  # its bias alone meets the head
    save_run(tmp_path / "out" / "fixed", fixed)
    save_run(tmp_path / "out" / "deeper" / "random", model_to_probe())
    return tmp_path / "out"


def test_a_fixed_preference_scores_exactly_chance(out, probe_py):
    code, printed = probe_py("out", "--max_new_tokens", "3")
    assert code == 0 and (out / "probe.html").exists()
    assert len(read_table(out / "probe.csv")) == sum(map(len, OURS.values()))
    result = load(out / "probe.json")
    tables = {table.facts["kind"]: table.rows for table in result.tables}
    _, fixed, chance = tables["shares"]
    for name in OURS:
        assert fixed[name][0] == pytest.approx(chance[name])  # whatever it prefers
    assert {row["run"] for row in tables["differences"]} == {"deeper/random minus fixed"}


def test_groups_are_counted_and_models_are_compared_over_them():
    """Two prompts with the same answers are one trial."""
    probes = []
    for i in range(20):
        for right, wrong in ((" a", " b"), (" b", " a")):
            probes.append(Probe("facts", f"p{i}", (f"{right}{i}", f"{wrong}{i}")))
    right = {"always": [True] * 40, "half": [True, False] * 20}
    shares, differences = result_tables(probes, right)
    always, half, chance = (row["facts"] for row in shares.rows)
    assert half[0] == chance == 0.5
    assert always[1] < 0.9  # of 20, not of 40
    (difference,) = differences.rows
    assert difference["difference"][0] == 0.5 and difference["p (Holm)"] < 1e-4


HOSTILE = "<script>document.title = 'broken'</script> & a \"cat\""


def test_plain_prompts_are_continued_and_not_judged(out, probe_py, tmp_path):
    (tmp_path / "mine.txt").write_text(f"Once upon\n{HOSTILE}\n")
    (tmp_path / "more.txt").write_text("There was\n")
    flags = "--model out/fixed --prompts mine.txt more.txt --max_new_tokens 4"
    assert probe_py(flags)[0] == 0
    assert load(out / "fixed" / "probe-mine-more.json").tables == []
    rows = read_table(out / "fixed" / "probe-mine-more.csv")
    assert [row["prompt"] for row in rows] == ["Once upon", HOSTILE, "There was"]
    assert all(row["fixed greedy"] and not row["fixed verdict"] for row in rows)
    assert HOSTILE not in (out / "fixed" / "probe-mine-more.html").read_text()


def test_prompts_are_continued_to_the_end_of_their_sentence():
    class Writer:
        def complete(self, wanted, sampling):
            for key, prompt in wanted.items():
                yield key, texts[prompt], True

    texts = {
        "Tom had": ' a ball. "No!" said Mia.',
        'Ben said, "Stop': '! I am here," and sat. He ran.',
        "Here": " it breaks off",
        "There": "",
    }
    probes = [Probe("mine", prompt) for prompt in texts]
    found = probe.continuations("m", Writer(), probes, 64)
    assert [*found.values()] == [" a ball.", '! I am here," and sat.', " it breaks off", ""]


def test_prompts_of_ones_own_with_answers(out, probe_py, tmp_path):
    own = dict(prompt=HOSTILE, right=" <b>", wrong=[" <i>", " a b"])
    (tmp_path / "mine.jsonl").write_text(f"{json.dumps(own)}\n\n{GOOD}")
    assert probe_py("out --prompts mine.jsonl --max_new_tokens 2 --out new/place")[0] == 0
    shares, *_ = load(tmp_path / "new" / "place" / "probe-mine.json").tables
    assert len(shares.rows) == 2  # no chance
    first, _ = read_table(tmp_path / "new" / "place" / "probe-mine.csv")
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
        assert [text.partition(": ")[2] for text in warnings] == ([trait] if trait else [])


def test_an_endpoint_continues_plain_prompts_only(endpoint, probe_py, tmp_path):
    (tmp_path / "mine.txt").write_text("Once upon\nOne day\n")
    endpoint.fault = lambda number, request: ("say", f"after {request['messages'][-1]['content']}")
    assert probe_py("--model api:teacher --prompts mine.txt")[0] == 0
    rows = read_table(tmp_path / "out" / "api--teacher" / "probe-mine.csv")
    assert [row["api:teacher greedy"] for row in rows] == [" after Once upon", " after One day"]
    answer = endpoint.fault

    def refuse(number, request):
        if request["messages"][-1]["content"] == "Once upon":
            return "status", 400, {}, "filtered"
        return answer(number, request)

    endpoint.fault = refuse  # one prompt, which leaves the others
    assert "1 requests failed" in probe_py("--model api:teacher --prompts mine.txt")[1].err
    rows = read_table(tmp_path / "out" / "api--teacher" / "probe-mine.csv")
    assert [row["api:teacher greedy"] for row in rows] == ["", " after One day"]
