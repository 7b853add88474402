"""grade.py against a server whose replies are of no use, or that ends, and killed three times: each
grading exactly once, in budget. (tests/generation/test_api_client.py has an API's own faults.)"""

import collections
import json
import re
import time

import pytest
from forks import grade_in, start
from grade_fixtures import GOOD, KEY, records, rows_of, write_samples
from story_files import snapshot

import grade
from nanostories.generation.api_client import FAILURES_IN_A_ROW
from nanostories.grading.chat_judge import TRIES, read_question, read_reply
from nanostories.grading.stories import read_runs

PAID = ("--price_in", "100", "--price_out", "1000", "--extra", '{"max_tokens": 100}')


def usable(out) -> collections.Counter:
    """{key: how many replies to it were kept}; UserError if one is not usable."""
    for record in records(out):
        read_reply(record["text"], ["grammar", "creativity", "consistency", "plot"])
    return collections.Counter(record["key"] for record in records(out))


def test_faults_that_pass(graded, api, out):
    faults = [
        ("say", "I'm sorry, but I cannot do that."),
        ("say", None, "stop", "I cannot grade this."),
        ("say", '{"assessment": "Good', "length"),
        ("say", json.dumps(GOOD | dict(grammar=11))),
    ]
    met = set()  # one fault for each story: three, by chance, would make its grading fail

    def fault(number, request):
        story = request["messages"][0]["content"]
        if faults and story not in met:
            met.add(story)
            return faults.pop()

    api.fault = fault
    graded()
    found = usable(out)
    assert not faults and len(found) == found.total() == 20


def test_what_stays_odd_is_counted_and_asked_again_later(grade_py, graded, api, out):
    run, _ = read_runs([out])[0]
    (bad,) = read_question("ours").texts(run.stories[0])

    def fault(number, request):
        if request["messages"][0]["content"] == bad:
            return "say", "No."

    api.fault = fault
    code, printed = grade_py()
    assert "some gradings failed" in code and "1 gradings failed: no single" in printed.err
    assert "WARNING rules: 1 gradings failed" in printed.out
    failed = {row["run"]: row["ungraded"] for row in rows_of(out, "scores") if row["judge"]}
    assert failed == {"a": 1, "b": 0} and len(api.requests) == 19 + TRIES
    api.fault = lambda number, request: None
    graded()
    assert len(api.requests) == 20 + TRIES


def test_a_judge_that_never_grades_is_given_up_early(grade_py, api):
    """What costs nothing is found without it."""
    api.fault = lambda number, request: ("say", "As a poet, I only rhyme.")
    code, printed = grade_py("--concurrency", "1")
    assert "I only rhyme" in code and len(api.requests) == FAILURES_IN_A_ROW
    assert "Means of metrics: a, b" in printed.out


def test_a_judge_that_grades_nothing_leaves_the_tables(grade_py, graded, api, out):
    graded()
    before = (out / "grades.json").read_bytes()
    api.fault = lambda number, request: ("status", 401)
    code, _ = grade_py("--extra", '{"seed": 7}')  # another question: no kept reply is of it
    assert "401" in code and (out / "grades.json").read_bytes() == before
    api.fault = lambda number, request: None
    graded("--extra", '{"seed": 7}')
    assert (out / "grades.json").read_bytes() != before


def test_an_interrupted_conversation_goes_on(grade_py, graded, api, out):
    """The assessment was paid for; only the grades are asked for."""
    api.fault = lambda number, request: ("status", 401) if len(request["messages"]) > 1 else None
    code, _ = grade_py("out/a", "--question", "paper", "--concurrency", "1")
    kept = [record["text"] for record in records(out / "a")]
    assert "401" in code and kept
    api.requests.clear()
    api.fault = lambda number, request: None
    graded("out/a", "--question", "paper")
    assert len(api.requests) == 20 - len(kept)
    continued = [x["messages"] for x in api.requests if len(x["messages"]) == 3]
    assert set(kept) <= {messages[1]["content"] for messages in continued}


def test_one_model_that_is_forbidden_leaves_the_other_its_grades(grade_py, api, out):
    api.fault = lambda number, request: ("status", 403) if request["model"] == "forbidden" else None
    code, _ = grade_py("--judge", "forbidden", "--concurrency", "2")
    assert "403" in code and "forbidden" in code
    ungraded = {row["judge"]: row.get("ungraded") for row in rows_of(out, "scores")}
    assert ungraded["rules"] == 0 and ungraded["forbidden"] > 0
    assert len(api.requests) < 40


def test_a_budget_is_for_all_judges_of_a_call(grade_py, graded, api):
    code, printed = grade_py("out/a", "--judge", "other", *PAID, "--max_cost", "1.5")
    costs = list(map(float, re.findall(r"spent \$([\d.]+)", printed.err)))
    assert "--max_cost" in code and len(costs) == 2 and 0 < sum(costs) <= 1.5
    graded("out/a", "--judge", "other", *PAID)
    assert len(api.requests) == 20


def test_a_judge_has_a_key_and_a_url_of_its_own(grade_py, graded, api, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("JUDGE_BASE_URL", api.url.replace("//", "//me:s3cret@"))
    code, printed = grade_py("out/a", "--judge", "rules", judge=None)
    said = f"{printed}{snapshot(tmp_path)}"
    assert code == 0 and {request["key"] for request in api.requests} == {"Basic bWU6czNjcmV0"}
    assert "s3cret" not in said and KEY not in said
    monkeypatch.setenv("JUDGE_BASE_URL", api.url)
    graded("out/a", "--judge", "rules", judge=None)
    assert len(api.requests) == 10  # the same endpoint: nothing is asked again


def test_a_full_disk_is_one_line_and_loses_one_reply_at_most(
    grade_py, graded, api, out, monkeypatch
):
    add = grade.Cache.add

    def full(self, key, entry):
        if len(self) == 7:
            with self.path.open("ab") as file:  # half a line, as a full disk would leave it
                file.write(b'\n{"key": "0')
            raise OSError(28, "No space left on device", str(self.path))
        add(self, key, entry)

    with monkeypatch.context() as patch:
        patch.setattr(grade.Cache, "add", full)
        code, _ = grade_py("--concurrency", "1")
    assert "grades.jsonl: No space left" in code
    api.requests.clear()
    graded()
    assert len(api.requests) == 20 - 7 and len(usable(out)) == 20


@pytest.mark.slow
def test_kills_lose_nothing_that_was_paid_for(api, out):
    for name in "ab":
        write_samples(out / name, 12, 3)
    api.fault = lambda number, request: time.sleep(0.05) or ("say", json.dumps(GOOD))
    for kill in (True, True, False):
        before = len(api.requests)
        process = start(grade_in, out.parent, api.url)
        while kill and len(api.requests) < before + 12 and process.is_alive():
            time.sleep(0.01)
        if kill:
            process.kill()
        process.join()
    found = usable(out)
    assert process.exitcode == 0 and len(found) == found.total() == 72
    assert len(api.requests) <= 72 + 2 * 4  # what was in flight when it was killed
