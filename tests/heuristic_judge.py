"""
A judge of simple rules behind an OpenAI-compatible API. It is not a language model; do not rely on
its grades.

It recognizes bad grammar, and grades consistency by the same signs, as a reader would who never
looks back at the beginning. That makes it good for trying out grade.py, whose --controls must find
out what it cannot see.

$ python tests/heuristic_judge.py --port 8123
$ python grade.py out/ --controls --judge rules-of-thumb --base_url http://127.0.0.1:8123/v1
"""

import http.server
import json
import operator
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from nanostories.cli import Parser
from nanostories.corpus.tokenizer import gpt2
from nanostories.grading.metrics import ngrams
from nanostories.text import sentences, words_of

NAMES = ("grammar", "creativity", "consistency", "plot")


def n_tokens(text: str) -> int:
    return len(gpt2().encode(text))


def grade(prompt: str, completion: str) -> dict:
    """The scores, from the text alone: the same text always gets the same grade."""
    words = words_of(completion)
    if not words:
        return {"assessment": "Nothing was written."} | dict.fromkeys(NAMES, 0) | {"age_group": "A"}
    pieces = sentences(completion, prompt)
    beginnings = [piece.lstrip(" \n\"“'")[:1] for piece in pieces[1:]]
    faults = {
        "breaks off": 3 * (re.search(r"""[.!?…]["'”’)]*\s*$""", completion) is None),
        "words twice in a row": sum(map(operator.eq, words, words[1:])),
        "no such words": sum(n_tokens(" " + word) > 3 for word in set(words)),
        "small letters to begin with": sum(map(str.islower, beginnings)),
        "quotes left open": 2 * ((prompt + completion).count('"') % 2),
        "too long a sentence": sum(len(piece.split()) > 35 for piece in pieces),
    }
    grams = ngrams(words, 3)
    repeated = 1 - len(set(grams)) / max(1, len(grams))
    per_100_words = 100 * sum(faults.values()) / max(60, len(words))
    grammar = 10 - per_100_words - 10 * repeated
    creativity = 3 + 12 * len(set(words) - set(words_of(prompt))) / len(words) - 10 * repeated
    consistency = 0.8 * grammar + 1.5  # does not compare it with the beginning
    complete = 0 if faults["breaks off"] else min(1.0, len(words) / 60)
    plot = 2 + 4 * complete + 0.4 * grammar
    found = zip(NAMES, (grammar, creativity, consistency, plot))
    scores = {name: round(min(10.0, max(0.0, score))) for name, score in found}
    level = sum(map(len, words)) / len(words) + scores["grammar"] / 5 - 2.5
    assessment = ", ".join(name for name, n in faults.items() if n) or "no fault found"
    said = {"assessment": f"{assessment}; {100 * repeated:.0f}% said again"}
    return said | scores | {"age_group": "ABCDEF"[min(5, round(level))]}


def follow(instruction: str, story: str) -> int:
    """How many of the instruction's longer words, names of fields aside, are in the story; of
    words, the first four letters, which most of their forms share."""
    asked = {word[:4] for word in words_of(re.sub("(?m)^.*?:", "", instruction)) if len(word) > 3}
    told = {word[:4] for word in words_of(story)}
    return round(10 * len(asked & told) / max(1, len(asked)))


def in_form(grades: dict, asked: str) -> str:
    """As the question wants them: a JSON object, an array, or an assessment in prose."""
    if "JSON" in asked:
        return json.dumps(grades)
    if "array" in asked:
        return json.dumps([value for name, value in grades.items() if name.upper() in asked])
    return grades["assessment"]


class Handler(http.server.BaseHTTPRequestHandler):
    """POST /v1/chat/completions, with usage counted in GPT-2's tokens."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, request: dict):
        texts = [message["content"] for message in request["messages"]]
        *before, story, _ = texts[0].split("\n----\n")
        prompt, _, completion = story.partition(" ***")
        grades = grade(prompt, completion)
        if len(before) == 3:  # what the pupil had been told stands between lines, too
            grades["instructions"] = follow(before[1], completion)
        content = in_form(grades, texts[-1])
        usage = dict(prompt_tokens=n_tokens("\n".join(texts)), completion_tokens=n_tokens(content))
        message = dict(role="assistant", content=content)
        choice = dict(index=0, message=message, finish_reason="stop")
        answer = dict(id="0", object="chat.completion", created=0, model=request["model"])
        body = json.dumps(answer | dict(choices=[choice], usage=usage)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.add_argument("--port", type=int, default=8123)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    print(f"rules of thumb at http://127.0.0.1:{server.server_port}/v1; Ctrl-C ends it")
    server.serve_forever()
