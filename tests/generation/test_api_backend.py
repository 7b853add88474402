"""sample.py --model api:MODEL, against a server that fails. (test_api_client.py has the faults
themselves.)"""

import pytest
from faulty_endpoint import say
from sample_fixtures import rows_of

MODEL = "--model api:gpt-3.5-turbo"
API = f"{MODEL} --prompts prompts.txt --n 2"
# A dollar a reply.
COSTLY = "--price_in 0 --price_out 1e5"


@pytest.fixture(autouse=True)
def prompts(tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\nOne day, Tom\n")


@pytest.fixture
def run(tmp_path):
    return tmp_path / "out" / "api--gpt-3.5-turbo"


def test_an_api_model_continues_stories(endpoint, sampled, run):
    endpoint.fault = lambda number, request: ("say", "a time.", "length" if number == 2 else "stop")
    sampled(f"{API} --concurrency 1 --max_new_tokens 50")
    rows = rows_of(run / "samples/prompts.jsonl")
    assert sorted(row["finished"] for row in rows) == [False, True, True, True]
    assert {row["base_url"] for row in rows} == {f"{endpoint.url}/"}
    settings = dict(model="gpt-3.5-turbo", temperature=1, max_tokens=50)
    assert all(settings.items() <= request.items() for request in endpoint.requests)
    asked = {request["messages"][-1]["content"] for request in endpoint.requests}
    assert asked == {"Once upon", "One day, Tom"}
    assert len({request["seed"] for request in endpoint.requests}) == 4


@pytest.mark.parametrize(
    "prompt, reply, story",
    [
        ("Once,", "a dog", "Once, a dog"),
        ("从前有", "3只小狗。", "从前有3只小狗。"),
        ("从前，", "Tom 来了。", "从前，Tom 来了。"),
        ("He said “", "Yes.”", "He said “Yes.”"),
        ("Mom said,", '"Yes."', 'Mom said, "Yes."'),
        ("Sie rief: „Komm!", "“ Dann", "Sie rief: „Komm!“ Dann"),
        ("妈妈说：", "“好。”", "妈妈说：“好。”"),
        ('Mom said, "Yes', '," and', 'Mom said, "Yes," and'),
        ("Once", ", a dog", "Once, a dog"),
        ('Tom said, "', 'Hello!"', 'Tom said, "Hello!"'),
        ("Sie rief:", "„Komm!“", "Sie rief: „Komm!“"),
    ],
)
def test_a_space_where_the_script_has_one(endpoint, sample_py, prompt, reply, story):
    endpoint.fault = say(reply)
    assert story in sample_py(f"{MODEL} --n 1 --prompt '{prompt}'")[1].out


def test_what_was_paid_for_is_kept_when_the_endpoint_gives_up(endpoint, sample_py, run):
    endpoint.fault = lambda number, request: ("say", "a time.") if number <= 3 else ("status", 401)
    code, printed = sample_py(f"{API} --concurrency 1")
    assert "check the key" in code
    assert len(rows_of(run / "samples/prompts.jsonl.part")) == 3
    endpoint.fault = say("another time.")
    assert sample_py(API)[0] == 0 and len(endpoint.requests) == 4 + 1
    completions = [row["completion"] for row in rows_of(run / "samples/prompts.jsonl")]
    assert sorted(completions) == [" a time."] * 3 + [" another time."]


def test_a_refused_story_does_not_stop_the_others(endpoint, sample_py, run):
    """Its prompt is left out, so that prompts have equally many, until the same command gets it."""
    answer = endpoint.fault

    def refuse_the_second(number, request):
        if number > 2 and request["messages"][-1]["content"] == "Once upon":
            return "status", 400
        return answer(number, request)

    endpoint.fault = refuse_the_second
    path = run / "samples/prompts.jsonl"
    for n_requests in (4, 5):  # the refused one is asked for again
        code, printed = sample_py(f"{API} --concurrency 1")
        assert "some requests failed" in code and "prompt_index 0" in code
        assert "incomplete: 1 failed" in printed.out and len(endpoint.requests) == n_requests
        assert [row["prompt_index"] for row in rows_of(path)] == [1, 1]
    # Many completions of a prompt that is refused, in a row, are no failing endpoint either.
    code, _ = sample_py(f"{API} --concurrency 1 --n 14")
    assert "prompt_index 0" in code and len(endpoint.requests) == 5 + 13
    assert [row["prompt_index"] for row in rows_of(path)] == [1] * 14
    endpoint.fault = answer
    assert sample_py(f"{API} --n 14")[0] == 0
    assert len(rows_of(path)) == 28 and len(endpoint.requests) == 18 + 13


def test_several_temperatures_share_one_budget(endpoint, sample_py):
    flags = f"{API} --temperature 0 0.5 1 {COSTLY} --max_new_tokens 10 --spending spending.jsonl"
    for _ in range(2):  # a budget holds over restarts
        assert "--max_cost 4.5" in sample_py(f"{flags} --max_cost 4.5")[0]
        assert [request["temperature"] for request in endpoint.requests] == [0, 0, 0.5, 0.5]
    code, printed = sample_py(f"{flags} --max_cost 100")  # 2 + 4 + 4 replies
    assert code == 0 and len(endpoint.counted) == 10 and "$6.00" in printed.err


def test_a_dry_run_counts_what_is_missing_and_sends_nothing(endpoint, sample_py, run):
    flags = f"""{API} {COSTLY} --max_new_tokens 10 --extra '{{"top_p": 0.9}}'"""
    printed = sample_py(f"{flags} --dry_run")[1].out
    assert "Once upon" in printed and '"top_p": 0.9' in printed
    assert "4 requests" in printed and "at most $4.0000" in printed
    assert not endpoint.requests and not run.exists()
    sample_py(f"{flags} --n 1")
    assert "2 requests" in sample_py(f"{flags} --dry_run")[1].out
