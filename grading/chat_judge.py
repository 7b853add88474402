"""
The chat judge, a model behind an API: estimating what its grades would cost, and asking until there are grades.

>>> judge = ChatJudge("gpt-4o-mini", "https://api.openai.com/v1")
>>> ask(plan_requests(runs, controls, ledgers, judge), ApiClient(), max_tokens=2000)
"""

import json
import sys
from collections.abc import Iterable, Sequence

from tqdm import tqdm

from corpus.tokenizer import gpt2
from grading.judge_questions import PROTOCOLS
from grading.judge_replies import BadReply, read_reply, without_reasoning
from grading.ledger import Ledger, Request, Setting
from grading.story import Story, key_of

FAILURES = {
    "content_filter": "filtered",
    "refusal": "refused",
    "not text": "its content is not text",
}


class ChatJudge:
    """A ledger.Judge."""

    def __init__(self, name: str, url: str, temperature: float | None = None, repeats: int = 1, protocol: str = "ours"):
        """temperature None: the API's default."""
        self.name, self.url, self.temperature, self.repeats = name, url, temperature, repeats
        self.protocol = PROTOCOLS[protocol]
        self.setting = Setting(name, temperature, url, "", protocol)

    def key(self, story: Story, repeat: int) -> str:
        return key_of(self.name, self.url, self.temperature, self.protocol.text(story), repeat)

    def facts(self) -> dict:
        facts = dict(judge=self.name, base_url=self.url, temperature=self.temperature, protocol=self.protocol.name)
        return facts | dict(question_sha256=self.protocol.sha256())

    def request_body(self, story: Story, replies: Sequence[str], max_tokens: int) -> dict:
        """The fields of a chat completion. replies: those to the earlier questions."""
        messages = self.protocol.messages(story, replies)
        body = dict(model=self.name, messages=messages, max_completion_tokens=max_tokens)
        if self.protocol.is_json:
            body["response_format"] = self.protocol.response_format(story)
        return body if self.temperature is None else body | dict(temperature=self.temperature)


def dry_run(requests: Sequence[Request], ledgers: Iterable[Ledger], max_tokens: int, budget) -> str:
    """For each protocol, the first grading as the API would get it, the number of requests, and their cost.

    budget: a generation.api_client.Budget, for its prices.
    """
    parts, ledgers = [], list(ledgers)
    for protocol in dict.fromkeys(request.judge.protocol for request in requests):
        own = [request for request in requests if request.judge.protocol is protocol]
        first, turns = own[0], len(protocol.turns)
        for i, question in enumerate(protocol.questions(first.story)):
            body = first.judge.request_body(first.story, ["(its reply)"] * i, max_tokens)
            for said in body["messages"]:
                said["content"] = "(above)" if said["role"] == "user" else said["content"]
            parts.append(f"{question}\n\n{json.dumps(body, indent=2)}")
        judges = dict.fromkeys(request.judge.name for request in own)
        seen = [n for ledger in ledgers for name in judges for n in ledger.reply_tokens.get((name, protocol.name), [])]
        each, source = (sum(seen) / len(seen), "the average so far") if seen else (protocol.reply_tokens, "a guess")
        lengths = [[len(gpt2().encode(text)) for text in protocol.questions(request.story)] for request in own]
        # Every later turn reads all earlier questions and replies again.
        tokens_in = sum(n * (turns - i) for texts in lengths for i, n in enumerate(texts))
        tokens_in += round(each * len(own) * turns * (turns - 1) / 2)
        cost = "give --price_in and --price_out to see the cost"
        if budget.price_in is not None:
            likely, most = (budget.cost(tokens_in, n * len(own) * turns) for n in (each, max_tokens))
            cost = f"about ${likely:.2f}, and ${most:.2f} if every reply took all of --max_tokens"
        how = f"{len(own):,} gradings by --protocol {protocol.name}, " if (protocol.name, turns) != ("ours", 1) else ""
        parts.append(
            f"{how}{len(own) * turns:,} requests to {first.judge.url}: about {tokens_in:,} tokens in (by GPT-2's "
            f"tokenizer), {each * len(own) * turns:,.0f} out ({each:.0f} a reply, {source}); {cost}"
        )
    return "\n\n".join(parts)


def ask(requests: Sequence[Request], client, max_tokens: int) -> ValueError | None:
    """Sends the requests through an ApiClient. Returns the error if the budget ran out; raises others."""
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
    judge, story, n_unusable = request.judge, request.story, 0
    replies = request.earlier_replies()
    while n_unusable < client.retries.replies:
        try:
            reply = await client.ask(judge.request_body(story, replies, max_tokens))
        except RequestFailed as error:
            request.keep(text=None, scores=None, failure=str(error), tokens_in=None, tokens_out=None)
            return
        scores, failure = None, failures.get(reply.finish_reason)
        is_last = len(replies) + 1 == len(judge.protocol.turns)
        if not failure and is_last:
            try:
                scores = read_reply(reply.text, judge.protocol.names(story), judge.protocol.has_age)
            except BadReply as error:
                failure = str(error)
        elif not failure and not without_reasoning(reply.text):
            failure = "its assessment is empty"
        kept = dict(tokens_in=reply.tokens_in, tokens_out=reply.tokens_out, model=reply.model)
        kept |= {} if is_last or failure else dict(turn=len(replies))
        request.keep(text=reply.text, scores=scores, failure=failure, **kept)
        if scores:
            return
        if failure:
            n_unusable += 1
        else:
            replies.append(without_reasoning(reply.text))
