"""
The writes of a model's parts, in tokens: the residual stream after each layer as if it were the
last (logit lens, nostalgebraist, 2020), and the part of a logit that each head, MLP and embedding
adds (direct logit attribution, Elhage et al., 2021).

>>> logits, cache = run_with_cache(model, tokens)
>>> logit_lens(model, cache["blocks.2.resid_post"])             # (B, T, vocab_size)
>>> scale = final_scale(model, cache["blocks.3.resid_post"])[0, -1]
>>> cache["blocks.1.attn_out"][0, -1] @ unembedding(model)[17] / scale  # a part of its logit

The residual stream is the sum of all writes, but a LayerNorm stands between it and the logits. Its
scale is taken from the intact run, so that the rest is linear, and the contributions add up to the
logit, but for what the last LayerNorm's bias adds.
"""

import collections
from collections.abc import Iterator

import torch
from tqdm import tqdm

from model import GPTNeo
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.interpretation.hooks import run_with_cache
from nanostories.interpretation.word_classes import WORD_CLASSES, TaggedCorpus, visible

WRITE_STORIES = 20  # read to see the tokens that heads write
# A share of copies is taken of at least this many queries: one or two say little about a head.
FEWEST_QUERIES = 20
SHARP = 0.5  # a query looks at a single token if it gives that token this much attention
LIKELIEST = 10  # a head copies if the token it looks at is among this many that it makes likeliest
WRITTEN = 6  # tokens per head in heads.csv
# A head with this share of copies is a copying head; chance would be LIKELIEST / vocab_size
COPYING = 0.25


def logit_lens(model: GPTNeo, resid: torch.Tensor) -> torch.Tensor:
    """The residual stream (…, C) anywhere -> the logits (…, vocab_size) as if it came after the
    last layer."""
    return model.head(model.ln_f(resid))


def unembedding(model: GPTNeo) -> torch.Tensor:
    """(V, C): the dot product of a write to the residual stream with a row, divided by
    `final_scale`, is the write's part of that token's logit. LayerNorm subtracts from a write its
    mean; to subtract from each row its own mean, once, gives the same dot products."""
    rows = model.head.weight * model.ln_f.weight
    return rows - rows.mean(1, keepdim=True)


def final_scale(model: GPTNeo, resid_post: torch.Tensor) -> torch.Tensor:
    """The final residual stream (…, C) -> what the last LayerNorm divides it by, (…)."""
    return (resid_post.var(-1, unbiased=False) + model.ln_f.eps).sqrt()


# ---- The writes of heads, over stories ----
@torch.no_grad()
def tokens_written(model: GPTNeo, corpus: TaggedCorpus, tokenizer: Tokenizer) -> list[dict]:
    """Columns of heads.csv, by direct logit attribution over all tokens of the vocabulary, on the
    first WRITE_STORIES.

    copies: of the queries that look at a single token, the share for which the head makes that
    token likelier than nearly all others. Queries that look at the first token do not count: heads
    rest there when they find nothing. writes: the distinct tokens that the head makes likeliest,
    strongest first; one per story. writes_kind: the most frequent kind of word among these, of
    those that a word of the stories has, and its share of all: "noun 60%".
    """
    kind_of_word = dict(zip(corpus.words, corpus.kinds))
    n_heads = model.config.n_layer * model.config.n_head
    copied = torch.zeros(n_heads)
    n_queries = torch.zeros(n_heads)
    written = [[] for _ in range(n_heads)]  # (addition to the logit, token), one per story
    for story in tqdm(corpus.stories[:WRITE_STORIES], "writes of heads", disable=None, delay=1):
        for i, (logits, attention, read) in enumerate(head_logits(model, story.tokens)):
            top = (logits - logits.mean(-1, keepdim=True)).topk(LIKELIEST)
            queries = (attention >= SHARP) & (read > 0)
            is_copied = (top.indices == story.tokens[read][:, None]).any(1) & queries
            copied[i] += is_copied.sum().item()
            n_queries[i] += queries.sum().item()
            strongest, where = top.values[:, 0].max(0)
            written[i].append((strongest.item(), top.indices[where, 0].item()))
    copies = copied / n_queries.clamp(min=FEWEST_QUERIES)
    columns = []
    for share, tokens in zip(copies.tolist(), written):
        tokens.sort(reverse=True)
        texts = [tokenizer.decode([token]) for _, token in tokens]
        distinct = dict.fromkeys(map(visible, texts))
        row = {"copies": share, "writes": " · ".join(list(distinct)[:WRITTEN]), "writes_kind": ""}
        words = map(str.strip, texts)
        kinds = [kind_of_word.get(word) or kind_of_word.get(word.lower()) for word in words]
        counts = collections.Counter(kind for kind in kinds if kind in WORD_CLASSES)
        for kind, n in counts.most_common(1):
            row["writes_kind"] = f"{kind} {n / len(texts):.0%}"
        columns.append(row)
    return columns


def head_logits(
    model: GPTNeo, tokens: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """tokens (T,) -> for each head: its addition to all logits, (T, V); its attention to the token
    that gets most, and where that is, (T,) each."""
    _, cache = run_with_cache(model, tokens[None])
    config = model.config
    reader = unembedding(model)
    scale = final_scale(model, cache[f"blocks.{config.n_layer - 1}.resid_post"][0])
    for layer, block in enumerate(model.blocks):
        z = cache[f"blocks.{layer}.z"][0]
        attention, read = cache[f"blocks.{layer}.pattern"][0].max(-1)  # (H, T)
        outputs = block.attention_out.weight.view(config.n_embd, config.n_head, -1)  # (C, H, D)
        for head in range(config.n_head):
            logits = z[:, head] @ (reader @ outputs[:, head]).T / scale[:, None]
            yield logits, attention[head], read[head]
