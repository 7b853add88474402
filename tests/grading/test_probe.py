"""probe.py: the sets are balanced, the scores are those of transformers, and the tables say what was found."""

import collections
import csv
import dataclasses
import html.parser
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from tqdm import tqdm

import probe
from checkpoints.checkpoint import CHECKPOINT_FORMAT
from checkpoints.huggingface import save_hf
from corpus.tokenizer import Tokenizer, gpt2
from generation.backends import LocalBackend, Sampling, load_backend
from model import GPTNeo, GPTNeoConfig
from probe import Probe, Result, nats_per_byte, read_probes

SEEDS = ROOT.parent / "shared" / "data" / "seed-prompts"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOKENIZER = Tokenizer(range(2999))  # and the end of text: 3,000 ids
OURS = {path.stem: read_probes(path, path.stem) for path in probe.SETS}
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


def random_model(**shape) -> GPTNeo:
    torch.manual_seed(0)
    config = GPTNeoConfig(vocab_size=3000, block_size=128, **dict(n_layer=2, n_head=2, n_embd=8, window_size=8) | shape)
    model = GPTNeo(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


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
        results = probe.examine(backend, probes, Sampling(), SILENT)
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


# The command line


@pytest.fixture
def probe_py(command_line, tmp_path):
    return command_line(probe, tmp_path)


def save_run(directory, model: GPTNeo):
    directory.mkdir(parents=True)
    facts = dict(format=CHECKPOINT_FORMAT, model_config=dataclasses.asdict(model.config), gpt2_ids=TOKENIZER.gpt2_ids)
    torch.save(facts | dict(model=model.state_dict()), directory / "ckpt.pt")


@pytest.fixture
def out(tmp_path):
    """out/ with a run that has a fixed preference for some words over others, whatever the prompt, and a random one."""
    fixed = random_model()
    torch.nn.init.zeros_(fixed.ln_f.weight)  # its bias alone meets the head
    save_run(tmp_path / "out" / "fixed", fixed)
    save_run(tmp_path / "out" / "deeper" / "random", random_model())
    return tmp_path / "out"


def table_of(path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_fixed_preference_scores_exactly_chance(out, probe_py):
    code, printed = probe_py("out", "--max_new_tokens", "3")
    assert code == 0
    rows = table_of(out / "probe.csv")
    assert len(rows) == sum(map(len, OURS.values()))
    for name, share in (("facts", 4), ("reasoning", 2), ("context", 2)):
        verdicts = [row["out/fixed verdict"] for row in rows if row["set"] == name]
        assert verdicts.count("right") * share == len(verdicts) == len(OURS[name])
    lines = [re.split("  +", line.strip()) for line in printed.out.splitlines()]
    assert lines[0] == ["facts (n = 60)", "reasoning (n = 64)", "context (n = 60)"]
    assert lines[1][0] == "out/deeper/random"
    assert lines[2] == ["out/fixed", "25.0% [15.8%, 37.2%]", "50.0% [38.1%, 61.9%]", "50.0% [37.7%, 62.3%]"]
    assert lines[3] == ["chance", "25.0%", "50.0%", "50.0%"]
    assert lines[4] == ["out/probe.csv has prompts x models; open out/probe.html to see what each of them says"]
    for row in rows:
        lead = float(row["out/fixed lead"])
        assert row["out/fixed verdict"] == ("right" if lead > 0 else "nearly" if lead >= -probe.NEARLY else "wrong")
    page = (out / "probe.html").read_text()
    for verdict in ("right", "nearly", "wrong"):
        cells = [row[f"{model} verdict"] for row in rows for model in ("out/fixed", "out/deeper/random")]
        assert page.count(f'<td class="{verdict}">') == cells.count(verdict) > 0


@pytest.mark.parametrize(
    "args, place",
    [
        ((), "out/fixed"),  # the newest
        (("--model", "out/fixed/ckpt.pt"), "out/fixed"),
        (("out/deeper", "--model", "out/fixed"), "out/deeper"),
        (("out", "--out", "new/place"), "new/place"),
    ],
)
def test_where_the_tables_go(out, probe_py, tmp_path, args, place):
    (tmp_path / "mine.txt").write_text("Once upon\n")
    assert probe_py(*args, "--max_new_tokens", "1", "--prompts", "mine.txt")[0] == 0
    assert {path.parent for path in tmp_path.rglob("probe*")} == {tmp_path / place}


HOSTILE = "<script>document.title = 'broken'</script> & a \"cat\""


def test_plain_prompts_are_continued_and_not_judged(out, probe_py, tmp_path):
    (tmp_path / "mine.txt").write_text(f"Once upon\n{HOSTILE}\n")
    (tmp_path / "more.json").write_text('["There was"]')
    code, printed = probe_py("--model", "out/fixed", "--prompts", "mine.txt", "more.json", "--max_new_tokens", "4")
    assert code == 0 and len(printed.out.splitlines()) == 1
    rows = table_of(out / "fixed" / "probe-prompts.csv")
    assert [(row["set"], row["prompt"]) for row in rows] == [
        ("mine.txt", "Once upon"),
        ("mine.txt", HOSTILE),
        ("more.json", "There was"),
    ]
    assert all(row["out/fixed greedy"] and not row["out/fixed verdict"] and not row["out/fixed lead"] for row in rows)
    page = (out / "fixed" / "probe-prompts.html").read_text()
    assert not re.search('<td class="[^"]', page) and "<script" not in page
    assert text_of(page).count(HOSTILE) == 1


def text_of(page: str) -> str:
    """What a browser would show of the page."""
    parts = []
    parser = html.parser.HTMLParser()
    parser.handle_data = parts.append
    parser.feed(page)
    return "".join(parts)


def test_the_seeds_of_the_paper(out, probe_py):
    if not SEEDS.exists():
        pytest.skip("needs ../shared/data/seed-prompts")
    seeds = [str(SEEDS / f"{name}.json") for name in ("factual", "reasoning", "context")]
    assert probe_py("--model", "out/fixed", "--prompts", *seeds, "--max_new_tokens", "2")[0] == 0
    assert len(table_of(out / "fixed" / "probe-prompts.csv")) == 24


def test_prompts_of_ones_own_with_answers(out, probe_py, tmp_path):
    rows = [
        {"prompt": HOSTILE, "right": " <b>", "wrong": [" <i>", " a b"]},
        {"prompt": "A", "right": " b", "wrong": [" c"]},
    ]
    (tmp_path / "mine.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    code, printed = probe_py("--model", "out/fixed", "--prompts", "mine.jsonl", "--max_new_tokens", "2")
    assert code == 0 and "41.7%" in printed.out  # chance is (1/3 + 1/2) / 2
    first, second = table_of(out / "fixed" / "probe-prompts.csv")
    assert (first["right"], first["wrong"]) == (" <b>", " <i> | a b")
    page = (out / "fixed" / "probe-prompts.html").read_text()
    assert "&lt;b&gt;</b><small>not &lt;i&gt;, a b</small>" in page and "<i>" not in page


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
            "the prompt must be a text that does not end with a blank",
        ),
        ('{"prompt": "", "right": " b", "wrong": [" c"]}', "the prompt must be a text"),
        ('{"prompt": "A", "right": "b", "wrong": [" c"]}', "every answer must begin with one blank"),
        ('{"prompt": "A", "right": " b", "wrong": " c"}', "every answer must begin with one blank"),
        ('{"prompt": "A", "right": " b ", "wrong": [" c"]}', "every answer must begin with one blank"),
        ('{"prompt": "A", "right": "  b", "wrong": [" c"]}', "every answer must begin with one blank"),
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


def test_mistakes_get_one_line(out, probe_py, tmp_path):
    (tmp_path / "long.jsonl").write_text(
        GOOD + json.dumps({"prompt": "far " * 126 + "a", "right": " b", "wrong": [" c"]})
    )
    (tmp_path / "empty").mkdir()
    for args, message in (
        (["--model", "nowhere"], "nowhere: no such checkpoint"),
        (["empty"], "empty: no run below it; train one with `python train.py`"),
        (["--model", "api:gpt-3.5-turbo"], "api:gpt-3.5-turbo needs OPENAI_API_KEY"),
        (["--model", "out/fixed", "--prompts", "no.jsonl"], "No such file or directory: 'no.jsonl'"),
        (["--model", "out/fixed", "--prompts", "empty"], "Is a directory: 'empty'"),
        (["--model", "out/fixed", "--prompts", "long.jsonl"], 'the context, 128 tokens, is too short for "far far'),
    ):
        code, printed = probe_py(*args)
        assert str(code).startswith("probe.py: ") and message in code and "\n" not in code
        assert printed.out == ""
    assert probe_py("--max_new_tokens", "0")[0] == 2
    assert not list(tmp_path.rglob("probe*.*"))


def test_a_run_that_cannot_be_probed_is_left_out(out, probe_py):
    (out / "deeper" / "random" / "ckpt.pt").write_bytes(b"cut")
    save_run(out / "short", GPTNeo(GPTNeoConfig(vocab_size=3000, block_size=20, n_layer=1, n_head=1, n_embd=8)))
    broken = random_model()
    torch.nn.init.constant_(broken.ln_f.bias, float("nan"))
    save_run(out / "nan", broken)
    other = random_model()
    other.another_part = torch.nn.Linear(1, 1)
    save_run(out / "other", other)
    code, printed = probe_py("out", "--max_new_tokens", "1")
    assert code == 1
    assert [line.split(" is left out: ")[0] for line in printed.err.splitlines()] == [
        f"probe.py: out/{name}" for name in ("deeper/random", "nan", "other", "short")
    ]
    assert "out/fixed verdict" in table_of(out / "probe.csv")[0]
    shutil.rmtree(out / "fixed")
    assert probe_py("out")[0] == "probe.py: no model is left; nothing was written"


def test_an_endpoint_continues_plain_prompts_only(endpoint, probe_py, tmp_path):
    (tmp_path / "mine.txt").write_text("Once upon\nOne day\n")
    endpoint.fault = lambda number, request: ("say", f"after {request['messages'][-1]['content']}")
    assert "an endpoint gives no log-likelihoods" in probe_py("--model", "api:teacher")[0]
    assert probe_py("--model", "api:teacher", "--prompts", "mine.txt")[0] == 0
    assert {request["temperature"] for request in endpoint.requests} == {0}
    rows = table_of(tmp_path / "out" / "api--teacher" / "probe-prompts.csv")
    assert [row["api:teacher greedy"] for row in rows] == [" after Once upon", " after One day"]


def test_a_full_disk_leaves_the_old_tables(out, tmp_path):
    """A limit on the size of files stands for it."""
    (out / "probe.csv").write_text("old")
    command = f"ulimit -f 4; exec {sys.executable} {ROOT / 'probe.py'} out --max_new_tokens 1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("probe.py: ")
    assert "Traceback" not in done.stderr
    assert (out / "probe.csv").read_text() == "old" and len(list(out.iterdir())) == 3


@pytest.mark.skipif(not CHROMIUM, reason="needs a Chromium")
def test_a_browser_shows_the_page_without_complaint(out, probe_py, tmp_path):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"prompt": HOSTILE, "right": " <b>", "wrong": [" <i>"]}))
    assert probe_py("out", "--prompts", "mine.jsonl", "--max_new_tokens", "5")[0] == 0
    page = out / "probe-prompts.html"
    assert not re.search("https?:|src=|@import|url\\(", page.read_text())
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    shown = subprocess.run([*command, f"file://{page}"], capture_output=True, text=True, errors="replace")
    assert "CONSOLE" not in shown.stderr
    assert "<title>probe</title>" in shown.stdout and "<script" not in shown.stdout
    assert HOSTILE in text_of(shown.stdout)
    assert shown.stdout.count("<tr") == 4 + 2 and shown.stdout.count("</td>") == 3 * 2 + 3
