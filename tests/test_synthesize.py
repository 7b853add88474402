"""synthesize.py against a local endpoint that writes stories, refuses, fails, or costs money."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from faulty_endpoint import serve

import synthesize
from nanostories.files import read_json_lines

ROOT = synthesize.PROMPTS.parent
FILLER = "They went home and were happy. " * 12


def story_of(request: dict) -> str:
    """Has what synthesize.py asks for, and differs for each request."""
    words = re.findall(r'the (?:verb|noun|adjective) "(.*?)"', request["messages"][-1]["content"])
    return f'"Look!" said Tim, number {request["seed"]}. He saw {", ".join(words)}. {FILLER}'


def tell(number: int, request: dict):
    return "say", story_of(request)


@pytest.fixture
def write(tmp_path, monkeypatch, capsys):
    """Calls synthesize.py -> its error message, or what it printed."""

    def call(server, *flags: str) -> str:
        own = [
            "--base_url",
            server.url,
            "--data_dir",
            str(tmp_path),
            "--name",
            "mine",
            "--concurrency",
            "2",
        ]
        monkeypatch.setattr(
            sys, "argv", ["synthesize.py", "--model", "m", "--stories", "8", *own, *flags]
        )
        try:
            synthesize.main()
        except SystemExit as stop:
            return str(stop.code)
        return capsys.readouterr().out

    call.stories = lambda name="mine": {
        row["index"]: row for row in read_json_lines(tmp_path / name / "stories.jsonl")
    }
    call.rejected = lambda: list(read_json_lines(tmp_path / "mine" / "rejected.jsonl"))
    return call


def test_each_story_has_its_own_words_and_is_asked_for_once(write):
    with serve(tell) as server:
        assert "python prepare.py --input" in write(server)
        before = write.stories()
        assert list(sorted(before)) == list(range(8)) and len(server.requests) == 8
        write(server, "--stories", "10")
    after = write.stories()
    assert len(server.requests) == 10 and all(after[index] == before[index] for index in before)
    assert len({tuple(row["words"]) for row in after.values()}) == 10


def test_a_story_without_its_words_is_kept_aside_and_asked_for_again(write):
    def refuse_first(number, request):
        return tell(number, request) if number > 8 else ("say", "I am sorry, I cannot write that.")

    with serve(refuse_first) as server:
        write(server)
    assert (
        len(write.stories()) == 8
        and [row["rejected"] for row in write.rejected()] == ["refused or too short"] * 8
    )
    assert (
        len({request["seed"] for request in server.requests}) == 16
    )  # another draw the second time


def test_asking_ends_after_three_attempts_at_each_story(write):
    with serve(lambda number, request: ("say", "A story without any of it. " + FILLER)) as server:
        assert "no stories" in write(server)
        assert len(server.requests) == 24
        write(server)
    assert len(server.requests) == 24 and {row["rejected"] for row in write.rejected()} == {
        "without all of its words"
    }


def test_summaries_are_asked_for_and_cut_off(write):
    with serve(
        lambda number, request: ("say", story_of(request) + "\n\nSummary: Tim looks.")
    ) as server:
        write(server, "--summaries")
    rows = write.stories().values()
    assert {row["summary"] for row in rows} == {"Tim looks."} and not any(
        "Summary" in row["text"] for row in rows
    )
    assert all(row["sentence"] in row["text"] for row in rows)


def test_one_budget_for_two_models_ends_it_in_the_middle_and_a_larger_one_continues(write):
    """A reply costs $0.11, and $0.7 is reserved for each: enough for the first model's stories, not
    for all."""
    prices = (
        "--price_in",
        "1000",
        "--price_out",
        "1000",
        "--max_new_tokens",
        "100",
        "--concurrency",
        "1",
    )
    with serve(tell) as server:
        assert "--max_cost 1.3" in write(server, "--model", "a", "b", *prices, "--max_cost", "1.3")
        models = [request["model"] for request in server.requests]
        assert (
            models.count("a") == 4
            and 0 < models.count("b") < 4
            and len(write.stories()) == len(models)
        )
        write(server, *prices, "--max_cost", "100")
    assert len(write.stories()) == 8 == len(server.requests)


def test_nothing_is_lost_or_paid_twice_when_killed(write, tmp_path):
    def slowly(number, request):
        time.sleep(0.1)
        return tell(number, request)

    own = [
        "--base_url",
        "",
        "--data_dir",
        str(tmp_path),
        "--name",
        "mine",
        "--stories",
        "30",
        "--concurrency",
        "1",
    ]
    with serve(slowly) as server:
        own[1] = server.url
        for n in (5, 10):
            process = subprocess.Popen(
                [sys.executable, ROOT / "synthesize.py", "--model", "m", *own], env=os.environ
            )
            while len(write.stories()) < n:
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            process.wait()
        write(server, "--stories", "30")
    assert len(write.stories()) == 30
    asked = [request["messages"][-1]["content"] for request in server.requests]
    assert len(asked) - len(set(asked)) <= 3  # those in flight when it was killed


def test_other_words_under_the_same_name_are_refused(write):
    with serve(tell) as server:
        write(server)
        for flags in (("--seed", "1"), ("--plain",), ("--language", "French")):
            assert "choose another --name" in write(server, *flags)
    assert len(server.requests) == 8


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
        assert "--headers --vocabulary=bpe --name mine-tokens" in printed
        assert "बिल्ली" in server.requests[0]["messages"][-1]["content"]
        write(server, "--plain", "--name", "plain", "--compare", "mine")
    assert (
        write.stories()[0]["words"] == ["बिल्ली", "खाना", "लाल"]
        and write.stories("plain")[0]["words"] == []
    )
    measured = (tmp_path / "plain" / "diversity.csv").read_text()
    assert "mine,8," in measured and "plain,8," in measured


def test_near_duplicates_and_duplicates_are_counted():
    from nanostories.novelty.diversity import describe

    texts = [f"word{i} " * 3 + f"other{i} thing{i} more{i} last{i}" for i in range(6)]
    copies = [
        dict(text=text, words=[], features=[]) for text in (*texts, texts[0], texts[1] + " end")
    ]
    (row, longer), _ = describe({"x": copies, "longer": copies * 2})
    assert row["duplicates"] == longer["duplicates"] == 1 / 8 and row["near-duplicates"] == 2 / 4
    assert json.dumps(row["words used"]) == "null"
