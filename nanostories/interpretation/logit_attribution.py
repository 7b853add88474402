"""
The writes of a model's parts, in tokens: the residual stream after each layer as if it were the
last (logit lens, nostalgebraist, 2020), and the part of a logit that each head, MLP and embedding
adds (direct logit attribution, Elhage et al., 2021).

>>> logits, cache = run_with_cache(model, tokens)
>>> logit_lens(model, cache["blocks.2.resid_post"])             # (B, T, vocab_size)
# (H,): parts of its logit
>>> cache["blocks.1.result"][0, -1] @ unembedding(model, model.head.weight[17], final)

The residual stream is the sum of all writes, but a LayerNorm stands between it and the logits. Its
scale is taken from the intact run, so that the rest is linear, and the contributions add up to the
logit.
"""

from collections.abc import Iterator

import torch

from model import GPTNeo
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.interpretation.hooks import run
from nanostories.interpretation.word_classes import Batch, TaggedCorpus

WRITE_STORIES = 20  # read to see the tokens that heads write
# a copying share is of at least this many, so that one or two do not make a head a copying one
FEWEST_QUERIES = 20
SHARP = 0.5  # a query looks at a single token if it gives that token this much attention
LIKELIEST = 10  # a head copies if the token it looks at is among this many that it makes likeliest
WRITTEN = 6  # tokens per head in heads.csv
# a head with this share of copies is a copying head; chance would be LIKELIEST / vocab_size
COPYING = 0.25


def logit_lens(model: GPTNeo, resid: torch.Tensor) -> torch.Tensor:
    """The residual stream (…, C) anywhere -> the logits (…, vocab_size) as if it came after the
    last layer."""
    return model.head(model.ln_f(resid))


@torch.no_grad()
def lens_table(model: GPTNeo, cache: dict, n: int = 3) -> list[list[list[tuple[int, float]]]]:
    """For the first sequence of the cache, after the embeddings and after each layer, at each
    position: the n likeliest next tokens and their probabilities. [layer][position][rank]"""
    stages = [
        cache["blocks.0.resid_pre"],
        *(cache[f"blocks.{i}.resid_post"] for i in range(len(model.blocks))),
    ]
    tops = [logit_lens(model, resid[0]).softmax(-1).topk(n) for resid in stages]
    return [
        [list(zip(*each)) for each in zip(top.indices.tolist(), top.values.tolist())]
        for top in tops
    ]


def unembedding(model: GPTNeo, directions: torch.Tensor, resid_post: torch.Tensor) -> torch.Tensor:
    """(…, C): the dot product of a write to the residual stream with this is the write's part of a
    logit.

    directions (…, C): rows of the output head, or their differences; resid_post (…, C): the final
    residual stream, whose standard deviation scales everything. Instead of its mean, as in
    LayerNorm, that of the result is subtracted.
    """
    deviation = (resid_post.var(-1, unbiased=False, keepdim=True) + model.ln_f.eps).sqrt()
    scaled = directions * model.ln_f.weight / deviation
    return scaled - scaled.mean(-1, keepdim=True)


# ---- The writes of heads, over stories ----
@torch.no_grad()
def tokens_written(model: GPTNeo, corpus: TaggedCorpus, tokenizer: Tokenizer) -> list[dict]:
    """Columns of heads.csv, by direct logit attribution over all tokens of the vocabulary, on the
    first WRITE_STORIES.

    copies: of the queries that look at a single token, the share for which the head makes that
    token likelier than nearly all others. Queries that look at the first token do not count: heads
    rest there when they find nothing. writes: the distinct tokens that the head makes likeliest,
    strongest first; one per story.
    """
    n_heads, device = model.config.n_layer * model.config.n_head, model.wte.weight.device
    n_stories = min(WRITE_STORIES, len(corpus.stories))
    copied, n_queries = torch.zeros(n_heads), torch.zeros(n_heads)
    values, tokens = (
        torch.zeros(n_heads, n_stories),
        torch.zeros(n_heads, n_stories, dtype=torch.long),
    )
    for batch in corpus.batches(n_stories, device, tokens=1024, label="outputs of heads"):
        for i, (logits, attention, looked_at) in enumerate(head_logits(model, batch)):
            top = (logits - logits.mean(-1, keepdim=True)).topk(LIKELIEST)
            queries = batch.not_padding & (attention >= SHARP) & (looked_at > 0)
            copies = (top.indices == batch.tokens.gather(1, looked_at)[..., None]).any(-1) & queries
            copied[i] += copies.sum().item()
            n_queries[i] += queries.sum().item()
            best, where = top.values[..., 0].masked_fill(~batch.not_padding, -torch.inf).max(1)
            values[i, batch.index] = best.cpu()
            tokens[i, batch.index] = top.indices[..., 0].gather(1, where[:, None])[:, 0].cpu()
    strongest = tokens.gather(1, values.argsort(1, descending=True)).tolist()
    texts = [
        list(dict.fromkeys(repr(tokenizer.decode([i]))[1:-1] for i in ids)) for ids in strongest
    ]
    shares = (copied / n_queries.clamp(min=FEWEST_QUERIES)).tolist()
    return [
        dict(copies=share, writes=" | ".join(some[:WRITTEN])) for share, some in zip(shares, texts)
    ]


def head_logits(
    model: GPTNeo, batch: Batch
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each head: its addition to all logits, (B, T, V); its attention to the token that gets
    most, and where that is, (B, T) each."""
    seen = {}

    def read(name: str, x: torch.Tensor):
        if name.endswith(("pattern", ".z", "resid_post")):
            seen[name] = (
                x.max(-1) if name.endswith("pattern") else x
            )  # (B, H, T), values and indices

    run(model, batch.tokens, read, with_pattern=True)
    H = model.config.n_head
    reader = model.head.weight * model.ln_f.weight
    reader = reader - reader.mean(
        1, keepdim=True
    )  # (V, C), as in `unembedding`, before it is scaled
    deviation = (
        seen[f"blocks.{len(model.blocks) - 1}.resid_post"].var(-1, unbiased=False) + model.ln_f.eps
    ).sqrt()
    for layer, block in enumerate(model.blocks):
        for head, output in enumerate(
            block.attention_out.weight.view(model.config.n_embd, H, -1).unbind(1)
        ):  # (C, D)
            logits = (
                seen[f"blocks.{layer}.z"][:, :, head] @ (reader @ output).T / deviation[..., None]
            )
            yield logits, *(x[:, head] for x in seen[f"blocks.{layer}.pattern"])
