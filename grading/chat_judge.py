"""
The judge behind an API: what it would be asked and at what cost; asking it, until there are grades.

>>> judge = ChatJudge("gpt-4o-mini", "https://api.openai.com/v1")
>>> ask(plan_requests(runs, controls, ledgers, judge), ApiClient(), max_tokens=2000)
"""

import json
import sys
from collections.abc import Iterable, Sequence

from tqdm import tqdm

from corpus.tokenizer import gpt2
from grading.judge import BadReply, Story, hash_of_question, key_of, question, read_reply, request_body
from grading.ledger import Ledger, Request, Setting

REPLY_TOKENS = 100  # a guess for a reply, before there are any
FAILURES = {
    "content_filter": "filtered",
    "refusal": "refused",
    "not text": "its content is not text",
}


class ChatJudge:
    """A ledger.Judge."""

    def __init__(self, name: str, url: str, temperature: float | None = None, repeats: int = 1):
        self.name, self.url, self.temperature, self.repeats = name, url, temperature, repeats
        self.setting = Setting(name, temperature, url, "")

    def key(self, story: Story, repeat: int) -> str:
        return key_of(self.name, self.url, self.temperature, question(story), repeat)

    def facts(self) -> dict:
        facts = dict(judge=self.name, base_url=self.url, temperature=self.temperature)
        return facts | dict(question_sha256=hash_of_question())

    def request_body(self, story: Story, max_tokens: int) -> dict:
        return request_body(self.name, story, max_tokens, self.temperature)


def dry_run(requests: Sequence[Request], ledgers: Iterable[Ledger], max_tokens: int, budget) -> str:
    """One whole request, as the API would get it first; how many there would be, at what cost.

    budget: a generation.api_client.Budget, for its prices.
    """
    first = requests[0]
    body = first.judge.request_body(first.story, max_tokens)
    body["messages"][0]["content"] = "(above)"
    judges = dict.fromkeys(request.judge.name for request in requests)
    seen = [n for ledger in ledgers for judge in judges for n in ledger.reply_tokens.get(judge, [])]
    each, source = (sum(seen) / len(seen), "as so far") if seen else (REPLY_TOKENS, "a guess")
    tokens_in = sum(len(gpt2().encode(question(request.story))) for request in requests)
    cost = "give --price_in and --price_out to see the cost"
    if budget.price_in is not None:
        likely, most = (budget.cost(tokens_in, n * len(requests)) for n in (each, max_tokens))
        cost = f"about ${likely:.2f}, and ${most:.2f} if every reply took all of --max_tokens"
    return (
        f"{question(first.story)}\n\n{json.dumps(body, indent=2)}\n\n"
        f"{len(requests):,} requests to {first.judge.url}: about {tokens_in:,} tokens in (by "
        f"GPT-2's tokenizer), {each * len(requests):,.0f} out ({each:.0f} a reply, {source}); {cost}"
    )


def ask(requests: Sequence[Request], client, max_tokens: int) -> ValueError | None:
    """Has them graded, by an ApiClient. Returns the error if the budget ran out; others are raised."""
    from generation.api_client import OverBudget

    bar = tqdm(desc="grading", total=len(requests), unit="grade", disable=None)
    try:
        for _ in client.run(grade(request, client, max_tokens) for request in requests):
            bar.set_postfix_str(f"{client.budget}, {client.n_retries} retries", refresh=False)
            bar.update()
    except OverBudget as error:
        return error
    finally:
        bar.close()
        print(f"this call: {client.budget}", file=sys.stderr)


async def grade(request: Request, client, max_tokens: int) -> None:
    """Asks until there are scores, or too many replies were unusable. All replies go to the ledgers."""
    from generation.api_client import RequestFailed

    failures = FAILURES | {"length": f"cut off at {max_tokens} tokens: raise --max_tokens"}
    for _ in range(client.retries.replies):
        try:
            reply = await client.ask(request.judge.request_body(request.story, max_tokens))
        except RequestFailed as error:
            request.keep(text=None, scores=None, failure=str(error), tokens_in=None, tokens_out=None)
            return
        scores, failure = None, failures.get(reply.finish_reason)
        if not failure:
            try:
                scores = read_reply(reply.text, list(request.story.scores))
            except BadReply as error:
                failure = str(error)
        tokens = dict(tokens_in=reply.tokens_in, tokens_out=reply.tokens_out, model=reply.model)
        request.keep(text=reply.text, scores=scores, failure=failure, **tokens)
        if scores:
            return
