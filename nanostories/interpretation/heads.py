"""
Attention heads, measured over many stories: how far they look, how sharply, and the share of their
attention that goes to the previous token, to names, to tokens after an earlier same one …; and the
same for uniform attention.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from nanostories.interpretation.hooks import visible_keys
from nanostories.interpretation.word_classes import KINDS, Batch, Story, TaggedCorpus

KIND_SHARES = [kind if kind == "punctuation" else f"{kind}s" for kind in KINDS]  # nouns, verbs, …
BACK = 9  # 0: a token's attention to itself, 1: to the previous one, up to 8 back
# Sets of keys whose share of the attention is measured, over the queries that can see at least one
# of them.
KEY_SETS = (
    *(f"back_{n}" for n in range(BACK)),
    "beginning",
    "same_token",
    "after_same",
    *KIND_SHARES,
)
# The roles of heads, and the measure that decides each: where they look, or at what.
PLACES = {
    "itself": "itself",
    "previous token": "previous",
    "fixed offset": "offset_share",
    "beginning": "beginning",
}
CONTENTS = {"same token": "same_token", "induction": "induction"} | {
    name: name for name in KIND_SHARES
}
ROLE_MEASURES = PLACES | CONTENTS
# a head has a role if that role's keys get this many times their share of uniform attention, …
MIN_LIFT = 2.0
MIN_EXCESS = 0.25  # … and exceed it by this much: (share - uniform) / (1 - uniform)
UNIFORM_ENTROPY = 0.95  # a head is uniform if its entropy is this share of uniform attention's
POSITIONS = (
    256  # position and content are separated over this many tokens at the beginning of a story
)
REPEATED = 50  # random tokens, repeated once to test for induction


def key_sets(batch: Batch, corpus: TaggedCorpus) -> torch.Tensor:
    """(B, KEY_SETS, T, T) bool: which keys belong to each of KEY_SETS, for each query."""
    same = (batch.tokens[:, :, None] == batch.tokens[:, None, :]).tril(-1)  # (B, query, key)
    after = F.pad(same, (1, 0))[:, :, :-1]  # the token before the key is that of the query
    places = torch.arange(same.size(1), device=same.device)
    distance = (places[:, None] - places).expand_as(same)
    by_place = [*(distance == n for n in range(BACK)), (places == 0).expand_as(same)]
    flags = F.pad(torch.stack([corpus.is_kind(kind) for kind in KINDS]), (0, 1)).to(
        same.device
    )  # last: no word
    is_kind = flags[:, batch.words].transpose(0, 1)[:, :, None].expand(-1, -1, same.size(1), -1)
    return torch.cat([torch.stack([*by_place, same, after], 1), is_kind], 1)


class HeadSums:
    """Sums over the attention of the H heads of a layer, and the measures that follow from them.

    One more head, the last of all, attends uniformly. A story's first token is no query: it sees
    only itself.
    """

    def __init__(self, H: int, longest: int, device: torch.device):
        P = min(longest, POSITIONS)
        self.n_queries, self.n_pairs = 0, 0
        self.distance = self.distance_squared = (
            0.0  # over all visible pairs, whatever the attention
        )
        self.shares, self.n_share_queries = torch.zeros(H + 1, len(KEY_SETS), device=device), 0
        self.attended_distance, self.entropy, self.squares = torch.zeros(3, H + 1, device=device)
        self.cells = torch.zeros(
            H + 1, P, P, device=device
        )  # attention by (query, key), summed over stories
        self.row_squares, self.n_rows = torch.zeros(H + 1, P, device=device), 0

    def add(
        self,
        attention: torch.Tensor,
        key_masks: torch.Tensor,
        window: int,
        not_padding: torch.Tensor,
    ) -> None:
        """attention (B, H, T, T), key_masks (B, KEY_SETS, T, T) of key_sets, not_padding (B, T)."""
        T, P = attention.size(2), self.cells.size(1)
        visible = visible_keys(T, window, attention.device)
        queries = not_padding.clone()
        queries[:, 0] = False
        uniform = (visible / visible.sum(1, keepdim=True)).expand(len(attention), 1, T, T)
        attention = torch.cat([attention, uniform], 1) * queries[:, None, :, None]
        key_masks = key_masks & visible & queries[:, None, :, None]
        positions = torch.arange(T, device=visible.device)
        distance = (positions[:, None] - positions) * visible  # (T, T), from query to key

        weights = torch.cat(
            [distance.expand(len(key_masks), 1, T, T), key_masks], 1
        ).float()  # (B, 1 + KEY_SETS, T, T)
        sums = (attention.flatten(2) @ weights.flatten(2).transpose(1, 2)).sum(
            0
        )  # (H + 1, 1 + KEY_SETS)
        self.attended_distance += sums[:, 0]
        self.shares += sums[:, 1:]
        self.n_share_queries += key_masks.any(-1).sum((0, 2))
        self.n_queries += queries.sum().item()
        n_queries_at = queries.sum(0)  # (T,)
        self.n_pairs += (n_queries_at * visible.sum(1)).sum().item()
        self.distance += (n_queries_at * distance.sum(1)).sum().item()
        self.distance_squared += (n_queries_at * (distance**2).sum(1)).sum().item()

        squares = attention.square().sum((0, 3))  # (H + 1, T)
        self.squares += squares.sum(1)
        self.entropy += torch.special.entr(attention).sum((0, 2, 3))
        self.cells[:, :T, :T] += attention[:, :, :P, :P].sum(0)
        self.row_squares[:, :T] += squares[:, :P]
        self.n_rows += F.pad(n_queries_at, (0, max(P - T, 0)))[:P]

    def measures(self) -> dict[str, torch.Tensor]:
        """(H + 1,) each: the share of KEY_SETS in the attention, without kinds of words that no
        story has; distance in tokens; entropy in nats; and

        distance_correlation: of attention and distance over all visible pairs. position: of the
        deviation from uniform attention, the share that is the same in all stories, and so due to
        the positions of query and key; the rest is due to content (an analysis of variance, with
        one cell for each pair).
        """
        mean, n = self.n_queries / self.n_pairs, self.n_pairs  # the attention of a query sums to 1
        covariance = self.attended_distance / n - mean * self.distance / n
        distance_variance = self.distance_squared / n - (self.distance / n) ** 2
        variance = self.squares / n - mean**2
        shares = self.shares / self.n_share_queries.clamp(min=1)
        enough = self.n_rows > 1
        n_rows = self.n_rows[enough]
        by_content = self.row_squares[:, enough] - (self.cells[:, enough] ** 2).sum(-1) / n_rows
        by_content = (by_content * n_rows / (n_rows - 1)).sum(
            1
        )  # unbiased: few stories are close to their mean
        not_uniform = (self.row_squares - self.row_squares[-1])[:, enough].sum(1)
        found = [
            name not in KIND_SHARES or n > 0
            for name, n in zip(KEY_SETS, self.n_share_queries.tolist())
        ]
        return {name: shares[:, i] for i, name in enumerate(KEY_SETS) if found[i]} | dict(
            distance=self.attended_distance / self.n_queries,
            distance_correlation=covariance
            / (variance * distance_variance).sqrt().clamp(min=1e-12),
            position=(1 - by_content / not_uniform)
            .clamp(0, 1)
            .where(not_uniform > 1e-6 * self.n_queries, 0.0),
            entropy=self.entropy / self.n_queries,
        )


def head_rows(layers: Sequence[HeadSums], repeated: Sequence[HeadSums]) -> list[dict]:
    """heads.csv: a row for each head, with its measures and, as NAME_uniform, those of uniform
    attention.

    repeated: sums over `repeated_random_tokens`. offset: the distance, 2 to 8 tokens back, that
    gets most.
    """
    rows = []
    for layer, sums in enumerate(layers):
        measures = sums.measures() | dict(induction=repeated[layer].measures()["after_same"])
        measures = {name: values.tolist() for name, values in measures.items()}
        back = list(zip(*(measures.pop(f"back_{n}") for n in range(BACK))))  # (H + 1, BACK)
        for head in range(len(back) - 1):
            offset = max(range(2, BACK), key=back[head].__getitem__)
            row = dict(offset=offset)
            for suffix, i in (("", head), ("_uniform", -1)):
                row |= {
                    f"{name}{suffix}": back[i][n]
                    for name, n in zip(("itself", "previous"), range(2))
                }
                row |= {f"offset_share{suffix}": back[i][offset]}
                row |= {f"{name}{suffix}": values[i] for name, values in measures.items()}
            del row["position_uniform"], row["distance_correlation_uniform"]
            rows.append(dict(layer=layer, head=head, **name_role(row)) | row)
    return rows


def name_role(row: dict) -> dict:
    """Its measures in words: the head's role, if it clearly has one; and its kind.

    Positional: position explains most of how its attention differs from uniform. Semantic: it does
    not, and the role says which content does. Unclear: neither.
    """
    if row["entropy"] >= UNIFORM_ENTROPY * row["entropy_uniform"]:
        return dict(role="uniform", kind="uniform")
    clear = {}
    for role, name in ((role, name) for role, name in ROLE_MEASURES.items() if name in row):
        share, uniform = row[name], row[f"{name}_uniform"]
        if share >= max(MIN_LIFT * uniform, uniform + MIN_EXCESS * (1 - uniform)):
            clear[role] = share
    role = max(clear, key=clear.get, default="mixed")
    kind = "positional" if row["position"] > 0.5 else "semantic" if role in CONTENTS else "unclear"
    return dict(role=role, kind=kind)


def repeated_random_tokens(
    corpus: TaggedCorpus, prefix: Sequence[int], block_size: int, seed: int = 0
) -> TaggedCorpus:
    """16 stories of random tokens that the corpus has, each repeated once. Attention to the
    successor of the same token before is induction, as nothing else leads there (Olsson et al.,
    2022)."""
    start = torch.tensor(prefix, dtype=torch.long)
    known = torch.cat([story.tokens for story in corpus.stories]).unique()
    known = known[~torch.isin(known, start)]
    n, generator = (
        min(REPEATED, (block_size - len(start)) // 2),
        torch.Generator().manual_seed(seed),
    )
    stories = []
    for _ in range(16):
        once = known[torch.randperm(len(known), generator=generator)[:n]]
        tokens = torch.cat([start, once, once])
        stories.append(
            Story(
                tokens,
                tokens,
                torch.full_like(tokens, -1),
                torch.zeros_like(tokens, dtype=torch.bool),
            )
        )
    return TaggedCorpus(stories, [], [])
