"""sample.py --model api:MODEL, against a server that fails."""

import resource
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT
from sample_fixtures import heavy_imports, rows_of, rows_of_part

from generation import api_client

HASTY = api_client.RetryPolicy(attempts=2, first_delay=0.01)
API = ("--model", "api:gpt-3.5-turbo", "--prompts", "prompts.txt", "--n", "2", "--temperature", "0.7")


def test_an_api_model_continues_stories(endpoint, sample_py, tmp_path):
    """Through a server that fails now and then."""
    (tmp_path / "prompts.txt").write_text("Once upon\nOne day, Tom\n")
    busy = ("status", 503, {"Retry-After": "0"})
    endpoint.fault = lambda number, request: busy if number % 3 == 2 else ("say", "a time. The end.")
    assert sample_py(*API)[0] == 0
    rows = rows_of(tmp_path / "out" / "api--gpt-3.5-turbo" / "samples.jsonl")
    assert [row["completion"] for row in rows] == [" a time. The end."] * 4
    assert all(row["finished"] and row["temperature"] == 0.7 for row in rows)
    request = endpoint.requests[0]
    assert request["path"] == "/v1/chat/completions" and request["key"] == "Bearer secret"
    assert request["model"] == "gpt-3.5-turbo" and request["temperature"] == 0.7
    assert {request["messages"][-1]["content"] for request in endpoint.requests} == {"Once upon", "One day, Tom"}
    assert len({request["seed"] for request in endpoint.requests}) == 4


def test_an_api_model_does_not_wait_for_torch(endpoint, tmp_path):
    endpoint.fault = lambda number, request: ("say", "a time.")
    assert heavy_imports(tmp_path, "sample.py", "--model", "api:x", "--prompt", "Once", "--n", "1") == {"openai"}


def test_what_was_paid_for_is_kept_when_the_endpoint_gives_up(endpoint, sample_py, tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\nOne day, Tom\n")
    refused = ("status", 401, {}, "no such\nkey")
    endpoint.fault = lambda number, request: ("say", "a time.") if number <= 3 else refused
    code, printed = sample_py(*API)
    assert code.startswith("sample.py: gpt-3.5-turbo at http://127.0.0.1") and "no such key" in code
    assert "\n" not in code
    had = len(endpoint.requests)
    endpoint.fault = lambda number, request: ("say", "another time.")
    assert sample_py(*API)[0] == 0
    assert len(endpoint.requests) - had == 1
    rows = rows_of(tmp_path / "out" / "api--gpt-3.5-turbo" / "samples.jsonl")
    assert sorted(row["completion"] for row in rows) == [" a time."] * 3 + [" another time."]


def test_an_api_model_without_a_key_says_so(sample_py, monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "prompts.txt").write_text("Once upon\n")
    code, printed = sample_py(*API)
    assert "OPENAI_API_KEY" in code and "\n" not in code
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "takes no --top_k" in sample_py(*API, "--top_k", "5")[1].err
    assert "needs --data" in sample_py("--model", "api:x", "--eval", "3")[0]


@pytest.mark.parametrize("answer", ["<html>Not here</html>", '{"error": "no"}', '{"choices": []}', '{"choi'])
def test_an_endpoint_that_is_none_is_named(endpoint, sample_py, tmp_path, monkeypatch, answer):
    monkeypatch.setattr(api_client, "RETRIES", HASTY)
    (tmp_path / "prompts.txt").write_text("Once upon\n")
    endpoint.fault = lambda number, request: ("raw", answer.encode())
    code, _ = sample_py(*API)
    assert code.startswith("sample.py: gpt-3.5-turbo at http://127.0.0.1") and "\n" not in code
    assert "OpenAI-compatible endpoint? Most end in /v1" in code or "no" in code


@pytest.mark.slow
def test_ctrl_c_keeps_the_answers_that_are_on_their_way(endpoint, tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\n" * 20)

    def slowly(number, request):
        time.sleep(2)
        return "say", "a time."

    endpoint.fault = slowly
    process = subprocess.Popen(
        [sys.executable, ROOT / "sample.py", *API], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while len(endpoint.requests) < 8:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=120)[1]
    assert "finishing requests in flight; Ctrl-C again quits" in stderr
    assert process.returncode == 1 and "run the same command to continue" in stderr and "Traceback" not in stderr
    assert len(rows_of_part(tmp_path / "out" / "api--gpt-3.5-turbo")) == 8


@pytest.mark.slow
def test_a_second_ctrl_c_quits(endpoint, tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\n" * 20)
    endpoint.fault = lambda number, request: ("hang", 60)
    process = subprocess.Popen(
        [sys.executable, ROOT / "sample.py", *API], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while len(endpoint.requests) < 8:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    while "finishing requests in flight" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    stderr = process.communicate(timeout=120)[1]
    assert process.returncode == 1 and len(endpoint.requests) == 8
    assert stderr == "\nsample.py: stopped; what was written is kept; run the same command to continue\n"


def test_a_request_that_fails_does_not_stop_the_others(endpoint, sample_py, tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\nBad\nOne day, Tom\n")

    def fault(number, request):
        return ("status", 400) if request["messages"][-1]["content"] == "Bad" else ("say", "a time.")

    endpoint.fault = fault
    code, _ = sample_py(*API)
    assert code.startswith("sample.py: gpt-3.5-turbo at http://127.0.0.1") and "\n" not in code
    assert code.endswith("2 of 6 requests failed; run it again to retry them")
    assert len(endpoint.requests) == 6 and len(rows_of_part(tmp_path / "out" / "api--gpt-3.5-turbo")) == 4
    endpoint.fault = lambda number, request: ("say", "a time.")
    endpoint.requests.clear()
    assert sample_py(*API)[0] == 0 and len(endpoint.requests) == 2


def test_rate_and_budget_are_those_of_grade_py(endpoint, sample_py, tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\n" * 5)
    endpoint.fault = lambda number, request: ("say", "a time.")  # which uses 100 tokens and writes 10
    paid = ("--price_in", "100", "--price-out", "1000", "--max_new_tokens", "20")  # hyphens are understood, too
    code, printed = sample_py(*API, *paid, "--rate", "120", "--max_cost", "0.1")
    assert code == "sample.py: stopped before --max_cost 0.1: the next request might exceed it"
    n = len(endpoint.requests)
    times = sorted(request["at"] for request in endpoint.requests)
    assert 0 < n <= 5 and times[-1] - times[0] > 0.5 * (n - 1) / 2
    assert {request["max_tokens"] for request in endpoint.requests} == {20}
    code, printed = sample_py(*API, *paid)
    assert code == 0 and len(endpoint.requests) == 10 and printed.err.endswith(f"this call: ${(10 - n) * 0.02:.4f}\n")
    assert "--max_cost needs --max_new_tokens" in sample_py(*API, *paid[:4], "--max_cost", "1")[1].err
    assert "--price_in and --price_out belong together" in sample_py(*API, "--price_in", "1")[1].err


def test_another_endpoint_and_a_refusal(endpoint, sample_py, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    (tmp_path / "prompts.txt").write_text("Once upon\n")
    says = [("say", None, "stop", "I cannot."), ("say", "my key is sk-secret-0123456789", "length")]
    endpoint.fault = lambda number, request: says.pop()
    assert sample_py(*API, "--base_url", endpoint.url, "--concurrency", "1")[0] == 0
    path = tmp_path / "out" / "api--gpt-3.5-turbo" / "samples.jsonl"
    rows = [(row["completion"], row["finished"]) for row in rows_of(path)]
    assert rows == [(" my key is [key]", False), ("", False)]
    assert {row["base_url"] for row in rows_of(path)} == {f"{endpoint.url}/"}  # as in files of earlier versions


def test_on_a_full_disk_nothing_more_is_asked_and_replies_in_flight_are_kept(
    endpoint, sample_py, tmp_path, monkeypatch
):
    """A limit on the size of files stands for it; there is room again as soon as it has been noticed."""
    (tmp_path / "prompts.txt").write_text("Once upon\n" * 50)
    endpoint.fault = lambda number, request: ("say", "a time. " * 30)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    stop = api_client.ApiClient.stop

    def stop_and_make_room(self, why):
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        stop(self, why)

    monkeypatch.setattr(api_client.ApiClient, "stop", stop_and_make_room)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        code, _ = sample_py(*API, "--concurrency", "30")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code.startswith("sample.py: out/api--gpt-3.5-turbo/samples.jsonl.part: File too large; make room")
    asked = len(endpoint.requests)
    assert asked == len(rows_of(tmp_path / "out" / "api--gpt-3.5-turbo" / "samples.jsonl.part")) < 60
    assert sample_py(*API)[0] == 0 and len(endpoint.requests) == 100


def test_half_a_character_in_one_reply_costs_no_other(endpoint, sample_py, tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\n" * 3)
    endpoint.fault = lambda number, request: ("say", "A dog \ud83d\ude00 \ud83d." if number == 2 else "A cat.")
    assert sample_py(*API)[0] == 0 and len(endpoint.requests) == 6
    rows = rows_of(tmp_path / "out" / "api--gpt-3.5-turbo" / "samples.jsonl")
    assert sorted(row["completion"] for row in rows) == [" A cat."] * 5 + [" A dog \U0001f600 \ufffd."]


def test_several_temperatures_share_one_budget(endpoint, sample_py, tmp_path):
    (tmp_path / "prompts.txt").write_text("Once upon\nOne day, Tom\n")
    endpoint.fault = lambda number, request: ("say", "a time.")
    costly = ("--price_in", "0", "--price_out", "1e5", "--max_new_tokens", "10")  # a dollar a reply
    several = (*API[:-1], "0", "0.5", "1", *costly)
    code, printed = sample_py(*several, "--max_cost", "4.5")
    assert code == "sample.py: stopped before --max_cost 4.5: the next request might exceed it"
    assert "this call" not in printed.err and [r["temperature"] for r in endpoint.requests] == [0, 0, 0.5, 0.5]
    assert sample_py(*several, "--max_cost", "100")[0] == 0 and len(endpoint.requests) == 2 + 4 + 4
    run = tmp_path / "out" / "api--gpt-3.5-turbo"
    assert {path.parent.name: len(rows_of(path)) for path in run.glob("*/samples.jsonl")} == {
        "temperature-0": 2, "temperature-0.5": 4, "temperature-1": 4,
    }  # fmt: skip
