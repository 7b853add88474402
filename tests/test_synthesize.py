"""synthesize.py against a local endpoint that writes stories, refuses, fails, or costs money.
(tests/generation/test_api_client.py has an API's own faults.)"""

import re
import subprocess
import sys
import time
from collections import Counter

import pytest
from faulty_endpoint import Misbehavior, serve

import synthesize
from nanostories.files import read_json_lines
from nanostories.results import load

ROOT = synthesize.PROMPTS.parent
FILLER = "They went home and were happy. " * 12
# A reply costs $0.11, and $0.7 and more is reserved for each.
PRICES = ("--price_in", "1000", "--price_out", "1000", "--max_new_tokens", "100")


def story_of(request: dict) -> str:
    """Has what synthesize.py asks for, and differs for each request."""
    words = re.findall(r'the (?:verb|noun|adjective) "(.*?)"', request["messages"][-1]["content"])
    return f'"Look!" said Tim, number {request.get("seed")}. He saw {", ".join(words)}. {FILLER}'


def tell(number: int, request: dict):
    return "say", story_of(request)


@pytest.fixture
def write(tmp_path, command_line):
    """Calls synthesize.py -> its error message, or what it printed."""
    run = command_line(synthesize, tmp_path)

    def call(server, *flags: str) -> str:
        place = ("--base_url", server.url, "--data_dir", tmp_path, "--name", "mine")
        code, printed = run(
            "--model", "m", "--stories", 8, "--concurrency", 2, *place, "--timeout", 600, *flags
        )
        return str(code) if code else printed.out

    call.stories = lambda name="mine": {
        row["index"]: row for row in read_json_lines(tmp_path / name / "stories.jsonl")
    }
    call.rejected = lambda: list(read_json_lines(tmp_path / "mine" / "rejected.jsonl"))
    return call


def test_each_story_has_its_own_words_and_is_asked_for_until_it_is_there(write):
    def refuse_every_other(number, request):
        return tell(number, request) if number % 2 == 0 else ("say", "No.")

    with serve(refuse_every_other) as server:
        assert "python prepare.py --input" in write(server, "--concurrency", 1)
        before = write.stories()
        assert list(before) == list(range(8)) and len(write.rejected()) == 8
        write(server, "--stories", "10", "--concurrency", 1)
        after = write.stories()
        assert len(server.requests) == 20 and before.items() <= after.items()
        assert len({tuple(row["words"]) for row in after.values()}) == 10
        for flags in (("--seed", "1"), ("--plain",)):
            assert "choose another --name" in write(server, *flags)
        assert len(server.requests) == 20


TOO_SHORT = [
    "I can write no such thing.",
    "对不起，我不能写这个故事。",
    "— … " * 50,
    "กี่ปุ้ง " * 9,  # 36 characters with their marks
]
REFUSALS = [
    "I'm sorry, but I cannot write stories about this. " + FILLER,
    "I’m really sorry, but this is not something that I can help with. " + FILLER,
    "Thank you for asking! As a language model, I am unable to do this. " + FILLER,
    "I must decline to write this. " + FILLER,
]


@pytest.mark.parametrize(
    "said, flags, reason",
    [
        *[((text,), ("--plain",), "shorter than 40 words") for text in TOO_SHORT],
        *[((text,), ("--plain",), "a refusal") for text in REFUSALS],
        (("A story without any of it. " + FILLER,), (), "without all of its words"),
        (("A story. " + FILLER,), ("--summaries", "--plain"), "without a summary"),
        (("A story. " + FILLER, "length"), ("--plain",), "cut off at the limit of tokens"),
        (("<think>It must have a",), (), "an empty reply (finish_reason: stop)"),
    ],
)
def test_what_is_no_story_is_kept_aside_and_asked_for_twice_again(write, said, flags, reason):
    with serve(lambda number, request: ("say", *said)) as server:
        for _ in range(2):
            assert "no stories" in write(server, "--stories", "2", *flags)
        assert len(server.requests) == 6 == len({request["seed"] for request in server.requests})
    assert {row["rejected"] for row in write.rejected()} == {reason} and not write.stories()


STORIES = [
    "从前有一只小狗。" * 6,
    "กาลครั้งหนึ่งนานมาแล้วมีสุนัขตัวเล็กตัวหนึ่ง" * 2,
    "एक बिल्ली थी। " * 20,
    '"I cannot sleep," said Tim. ' + FILLER,
]


@pytest.mark.parametrize("text", STORIES)
def test_forty_words_in_any_script(write, text):
    with serve(lambda number, request: ("say", f"<think>?</think>{text}")) as server:
        write(server, "--plain", "--stories", 1)
    assert {row["text"] for row in write.stories().values()} == {text.strip()}


def test_summaries_are_asked_for_and_cut_off(write):
    def summarize(number, request):
        return "say", story_of(request) + "\n\nSummary: Tim looks."

    with serve(summarize) as server:
        write(server, "--summaries")
    rows = write.stories().values()
    assert {row["summary"] for row in rows} == {"Tim looks."}
    assert not any("Summary" in row["text"] for row in rows)
    assert all(row["sentence"] in row["text"] for row in rows)


def test_one_budget_for_two_models_ends_it_in_the_middle_and_a_larger_one_continues(
    write, tmp_path
):
    ledger = tmp_path / "spending.jsonl"
    flags = ("--model", "a", "b", *PRICES, "--concurrency", "1", "--spending", str(ledger))
    with serve(tell) as server:
        for _ in range(2):
            assert "--max_cost 1.3" in write(server, *flags, "--max_cost", "1.3")
            assert {request["model"] for request in server.requests} == {"a", "b"}
            assert 0 < len(write.stories()) == len(server.requests) < 8
        write(server, *flags, "--max_cost", "100")
    assert len(write.stories()) == 8 == len(server.requests)
    dollars = sum(row["dollars"] for row in read_json_lines(ledger))
    assert dollars == pytest.approx(0.11 * len(server.counted))


def test_dry_run_shows_a_request_and_sends_none(write, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serve(tell) as server:
        printed = write(server, *PRICES, "--dry_run")
    assert "Write a short story" in printed and "8 requests" in printed
    worst = float(re.search(r"each up to 3 times: at most \$([\d.]+)", printed)[1])
    assert worst > 3 * 8 * 0.1  # the longest replies alone, by PRICES
    assert not server.requests and not write.stories()
    with serve(tell) as server:
        write(server)
        assert "nothing to ask" in write(server, *PRICES, "--dry_run")


@pytest.mark.slow
def test_nothing_is_lost_or_paid_twice_when_killed(write, tmp_path):
    """Three times, by an endpoint that gets everything wrong that it can."""
    flags = ["--stories", 50, "--timeout", 2, "--spending", tmp_path / "paid.jsonl"]
    flags += ["--max_cost", 100, *PRICES]
    with serve(Misbehavior(story_of)) as server:
        place = ["--base_url", server.url, "--data_dir", tmp_path, "--name", "mine"]
        command = [sys.executable, ROOT / "synthesize.py", "--model", "m", *place, *flags]
        for n in (5, 10, 20):
            process = subprocess.Popen(list(map(str, command)))
            while len(write.stories()) < n:
                assert process.poll() is None
                time.sleep(0.02)
            process.kill()
            process.wait()
        message = write(server, *flags)
    refused = {
        request["messages"][0]["content"]
        for request in server.requests
        if server.fault.refuses(request)
    }
    assert refused and "HTTP 400" in message and "filtered" in message
    n_given_up = list(Counter(row["index"] for row in write.rejected()).values()).count(3)
    assert len(write.stories()) == 50 - len(refused) - n_given_up
    rows = list(read_json_lines(tmp_path / "paid.jsonl"))
    dollars = sum(row["dollars"] for row in rows)
    reserved = sum(row["reserved"] for row in rows)
    # What the endpoint wrote for a process that had been killed is still reserved.
    assert dollars - 1e-9 <= 0.11 * len(server.counted) <= dollars + reserved <= 100


def test_bad_input_is_one_line_and_asks_nothing(write, tmp_path):
    (tmp_path / "words.csv").write_text("word,kind\ncat,noun\n")
    (tmp_path / "template.txt").write_text("A story about a {hero}.")
    with serve(tell) as server:
        assert "verb" in write(server, "--words", str(tmp_path / "words.csv"))
        assert "{hero}" in write(server, "--template", str(tmp_path / "template.txt"))
    assert not server.requests


def test_another_language_takes_its_own_words_and_plain_takes_none(write, tmp_path):
    (tmp_path / "words.csv").write_text(
        "word,kind\nबिल्ली,noun\nखाना,verb\nलाल,adjective\n", encoding="utf-8"
    )
    with serve(lambda number, request: ("say", "एक बिल्ली थी। " * 20)) as server:
        printed = write(server, "--words", str(tmp_path / "words.csv"), "--language", "Hindi")
        assert "--headers --vocabulary=bpe" in printed
        assert "बिल्ली" in server.requests[0]["messages"][-1]["content"]
        assert write(server, "--language", "Hindi") == "2"  # with English words
        write(server, "--plain", "--name", "plain")
    assert write.stories()[0]["words"] == ["बिल्ली", "खाना", "लाल"]
    assert write.stories("plain")[0]["words"] == []
    (table,) = load(tmp_path / "plain" / "requests.json").tables
    assert [(row["data"], row["stories"]) for row in table.rows] == [("plain", 8)]


def test_what_was_requested_is_counted():
    story = dict(text='Tom ran. "No," said Mia.', words=["run", "sing"], features=["Dialogue"])
    plain = dict(text="Tom ran.", words=[], features=[])
    story["language"] = plain["language"] = "English"
    (row,) = synthesize.describe("mine", [story, plain]).rows
    (nothing,) = synthesize.describe("plain", [plain]).rows
    assert row["words used"] == 1 / 2 and row["stories"] == 2
    assert row["dialogue if requested"] == 1 and row["dialogue otherwise"] == 0
    assert nothing["words used"] is None
