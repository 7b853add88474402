"""sample.py --model api:MODEL, against a server that fails. (test_api_client.py has the faults
themselves.)"""

import pytest
from sample_fixtures import rows_of

API = ("--model", "api:gpt-3.5-turbo", "--prompts", "prompts.txt", "--n", "2")


@pytest.fixture(autouse=True)
def prompts(tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\nOne day, Tom\n")


@pytest.fixture
def run(tmp_path):
    return tmp_path / "out" / "api--gpt-3.5-turbo"


def test_an_api_model_continues_stories(endpoint, sample_py, run):
    endpoint.fault = lambda number, request: (
        "say",
        "a time. The end.",
        "length" if number == 2 else "stop",
    )
    assert sample_py(*API, "--concurrency", "1", "--max_new_tokens", "50")[0] == 0
    rows = rows_of(run / "samples.jsonl")
    assert [row["completion"] for row in rows] == [
        " a time. The end."
    ] * 4  # with the space that chat models drop
    assert [row["finished"] for row in rows] == [True, False, True, True]
    assert {row["base_url"] for row in rows} == {f"{endpoint.url}/"}
    settings = dict(model="gpt-3.5-turbo", temperature=1, max_tokens=50)
    assert all(settings.items() <= request.items() for request in endpoint.requests)
    assert {request["messages"][-1]["content"] for request in endpoint.requests} == {
        "Once upon",
        "One day, Tom",
    }
    assert len({request["seed"] for request in endpoint.requests}) == 4


def test_what_was_paid_for_is_kept_when_the_endpoint_gives_up(endpoint, sample_py, run):
    endpoint.fault = lambda number, request: ("say", "a time.") if number <= 3 else ("status", 401)
    code, printed = sample_py(*API, "--concurrency", "1")
    assert "OPENAI_API_KEY" in code and "\n" not in code
    assert len(rows_of(run / "samples.jsonl.part")) == 3 and not (run / "samples.jsonl").exists()
    endpoint.fault = lambda number, request: ("say", "another time.")
    assert sample_py(*API)[0] == 0 and len(endpoint.requests) == 4 + 1
    completions = [row["completion"] for row in rows_of(run / "samples.jsonl")]
    assert sorted(completions) == [" a time."] * 3 + [" another time."]


def test_a_request_that_fails_does_not_stop_the_others(endpoint, sample_py, run):
    says = {"Once upon": ("status", 400), "One day, Tom": ("say", "a time.")}
    endpoint.fault = lambda number, request: says[request["messages"][-1]["content"]]
    code, _ = sample_py(*API)
    assert (
        "2 of 4 requests failed" in code
        and "\n" not in code
        and len(rows_of(run / "samples.jsonl.part")) == 2
    )


def test_several_temperatures_share_one_budget(endpoint, sample_py, run):
    endpoint.fault = lambda number, request: ("say", "a time.")
    costly = ("--price_in", "0", "--price_out", "1e5", "--max_new_tokens", "10")  # a dollar a reply
    several = (*API, "--temperature", "0", "0.5", "1", *costly)  # 2 + 4 + 4 replies
    code, printed = sample_py(*several, "--max_cost", "4.5")
    assert "--max_cost 4.5" in code and [r["temperature"] for r in endpoint.requests] == [
        0,
        0,
        0.5,
        0.5,
    ]
    code, printed = sample_py(*several, "--max_cost", "100")
    assert code == 0 and len(endpoint.requests) == 10 and "$6.00" in printed.err
    assert "--max_new_tokens" in sample_py(*API, *costly[:4], "--max_cost", "1")[0]
