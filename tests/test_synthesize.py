"""synthesize.py against a local endpoint that writes stories, refuses, fails, or costs money.
(tests/generation/test_api_client.py has an API's own faults.)"""

import re
import subprocess
import sys
import time
from collections import Counter

import pytest
from faulty_endpoint import refusal_of, say

import synthesize
from nanostories.files import read_json_lines
from nanostories.results import load

ROOT = synthesize.PROMPTS.parent
FILLER = "They went home and were happy. " * 12
# A reply costs $0.11, and $0.7 and more is reserved for each.
PRICES = ("--price_in", "1000", "--price_out", "1000", "--max_new_tokens", "100")


def story_of(request: dict) -> str:
    """Has what synthesize.py asks for, and differs for each request; begins as refusals do."""
    words = re.findall(r'the (?:verb|noun|adjective) "(.*?)"', request["messages"][-1]["content"])
    return f'"I cannot sleep," said Tim, {request.get("seed")}. He saw {", ".join(words)}. {FILLER}'


def tell(number: int, request: dict):
    return "say", story_of(request)


def misbehave(number: int, request: dict):
    """What an endpoint gets wrong, now and then."""
    faults = {
        5: ("say", ""),
        7: ("say", "Once", "length"),
        9: ("raw", b"<html>Bad Gateway</html>", 502),
        11: ("drop",),
        13: ("hang",),
    }
    return refusal_of(request, "seed") or faults.get(number % 40) or tell(number, request)


def arguments(directory, *flags) -> list:
    place = ("--data_dir", directory, "--name", "mine")
    return [*place, "--model", "m", "--stories", 8, "--concurrency", 2, "--timeout", 600, *flags]


@pytest.fixture
def write(tmp_path, command_line, endpoint):
    """Calls synthesize.py -> its error message, or what it printed."""
    run = command_line(synthesize, tmp_path)
    endpoint.fault = tell

    def call(*flags) -> str:
        code, printed = run(*arguments(tmp_path, *flags))
        return str(code) if code else printed.out

    call.stories = lambda name="mine": {
        row["index"]: row for row in read_json_lines(tmp_path / name / "stories.jsonl")
    }
    call.rejected = lambda: list(read_json_lines(tmp_path / "mine" / "rejected.jsonl"))
    return call


def test_each_story_has_its_own_words_and_is_asked_for_until_it_is_there(write, endpoint):
    def refuse_every_other(number, request):
        return tell(number, request) if number % 2 == 0 else ("say", "No.")

    endpoint.fault = refuse_every_other
    assert "python prepare.py --input" in write("--concurrency", 1)
    before = write.stories()
    assert list(before) == list(range(8)) and len(write.rejected()) == 8
    write("--stories", 10, "--model", "m", "n")
    assert {request["model"] for request in endpoint.requests} == {"m", "n"}
    after = write.stories()
    assert before.items() <= after.items()
    assert len({tuple(row["words"]) for row in after.values()}) == 10
    assert "choose another --name" in write("--seed", 1)
    assert len(endpoint.requests) == 20


TOO_SHORT = [
    "I can write no such thing.",
    "对不起，我不能写这个故事。",
    "กี่ปุ้ง " * 9,  # 36 characters with their marks
]
REFUSALS = [
    "I'm sorry, but I cannot write stories about this.",
    "Thank you for asking! As a language model, I am unable to do this.",
    "I must decline to write this.",
]


@pytest.mark.parametrize(
    "said, flag, reason",
    [
        *[((text,), "--plain", "shorter than 40 words") for text in TOO_SHORT],
        *[((f"{text} {FILLER}",), "--plain", "refusal") for text in REFUSALS],
        ((FILLER,), "--seed=0", "lacks a word that was requested"),
        ((FILLER,), "--summaries", "no summary"),
        ((FILLER, "length"), "--plain", "cut off at the limit of tokens"),
        (("",), "--plain", "an empty reply (finish_reason: stop)"),
    ],
)
def test_what_is_no_story_is_kept_aside_and_asked_for_twice_again(
    write, endpoint, said, flag, reason
):
    endpoint.fault = say(*said)
    for _ in range(2):
        assert "no stories" in write("--stories", 2, flag)
    assert len(endpoint.requests) == 6 == len({request["seed"] for request in endpoint.requests})
    assert {row["rejected"] for row in write.rejected()} == {reason} and not write.stories()


def test_a_summary_is_asked_for_and_cut_off(write, endpoint):
    endpoint.fault = say(f"{FILLER}\n\n**Summary:** Tim looks.")
    write("--summaries", "--plain", "--stories", 1)
    (row,) = write.stories().values()
    assert row["text"] == FILLER.strip() and row["summary"] == "Tim looks."
    assert row["sentence"] in FILLER


def test_dry_run_shows_a_request_and_sends_none(write, endpoint):
    printed = write(*PRICES, "--dry_run")
    assert "Write a short story" in printed and "8 requests" in printed
    # by PRICES, the longest replies alone are 3 * 8 * 0.1
    assert re.search(r"each up to 3 times: at most \$([3-9]|\d\d)\.", printed)
    assert not endpoint.requests
    write()
    assert "nothing to ask" in write("--dry_run")


@pytest.mark.slow
def test_nothing_is_lost_or_paid_twice_when_killed(write, endpoint, tmp_path):
    """Twice, by an endpoint that gets everything wrong that it can."""
    flags = ["--stories", 50, "--timeout", 2, "--spending", tmp_path / "paid.jsonl"]
    flags += ["--max_cost", 100, *PRICES]
    endpoint.fault = misbehave
    command = [sys.executable, ROOT / "synthesize.py", *arguments(tmp_path, *flags)]
    for n in (5, 20):
        process = subprocess.Popen(list(map(str, command)))
        while len(write.stories()) < n:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.wait()
    assert "python prepare.py" in write(*flags)
    n_given_up = list(Counter(row["index"] for row in write.rejected()).values()).count(3)
    assert len(write.stories()) == 50 - n_given_up
    rows = list(read_json_lines(tmp_path / "paid.jsonl"))
    dollars = sum(row["dollars"] for row in rows)
    reserved = sum(row["reserved"] for row in rows)
    # What the endpoint wrote for a process that had been killed is still reserved.
    assert dollars - 1e-9 <= 0.11 * len(endpoint.counted) <= dollars + reserved <= 100


def test_refused_requests_are_counted(write, endpoint, monkeypatch):
    endpoint.fault = lambda *_: ("status", 400, {}, "filtered")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")  # nothing is there
    said = write("--base_url", endpoint.url)
    assert "8 of 8 requests failed; run it again to retry them: HTTP 400" in said


@pytest.mark.parametrize(
    "flag, text, said",
    [
        ("--words", "word,kind\ncat,noun\n", "verb"),
        ("--words", "word,kind\n ,noun\n", "file.txt, line 2: no word"),
        ("--template", "A story about a {hero}.", "{hero}"),
    ],
)
def test_bad_input_is_one_line_and_asks_nothing(write, endpoint, tmp_path, flag, text, said):
    (tmp_path / "file.txt").write_text(text)
    assert said in write(flag, tmp_path / "file.txt") and not endpoint.requests


def test_another_language_takes_its_own_words_and_plain_takes_none(write, endpoint, tmp_path):
    words = tmp_path / "words.csv"
    words.write_text("word,kind\nबिल्ली,noun\nखाना,verb\nलाल , adjective\n", encoding="utf-8")
    endpoint.fault = say("एक बिल्ली थी। " * 20)
    printed = write("--words", words, "--language", "Hindi")
    assert "--headers --vocabulary=bpe" in printed
    assert "बिल्ली" in endpoint.requests[0]["messages"][-1]["content"]
    assert "--words" in write("--language", "Hindi")  # with English words
    write("--plain", "--name", "plain")
    assert write.stories()[0]["words"] == ["बिल्ली", "खाना", "लाल"]
    assert write.stories("plain")[0]["words"] == []
    assert load(tmp_path / "plain" / "requests.json").tables[0].rows[0]["stories"] == 8


def test_what_was_requested_is_counted():
    plain = dict(text="Tom ran.", features=[])
    asked = dict(text='Tom ran. "No," said Mia.', features=["Dialogue"])
    (row,) = synthesize.describe("mine", [asked, plain]).rows
    assert row["stories"] == 2
    assert row["dialogue if requested"] == 1 and row["dialogue otherwise"] == 0
    assert synthesize.describe("plain", [plain]).rows[0]["dialogue if requested"] is None
