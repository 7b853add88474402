"""
What attention heads look at, measured over many stories: how far, how sharply, and how much of their attention goes to
the previous token, to names, to what followed the same token before …; and what uniform attention would give to each.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from interpretation.hooks import run, visible_keys
from interpretation.word_classes import KINDS, Batch, TaggedCorpus
from model import GPTNeo

KIND_SHARES = [kind if kind == "punctuation" else f"{kind}s" for kind in KINDS]  # nouns, verbs, …
# Sets of keys whose share of the attention is measured, over the queries that can see at least one of them.
SHARES = ("same_token", "after_same", "beginning", *KIND_SHARES)
OFFSETS = 9  # 0: a token's attention to itself, 1: to the previous one, up to 8 back
# The roles of heads, and the measure that decides each: where they look, or at what.
PLACES = {"itself": "itself", "previous token": "previous", "fixed offset": "offset_share", "beginning": "beginning"}
CONTENTS = {"same token": "same_token", "induction": "induction"} | {name: name for name in KIND_SHARES}
ROLE_MEASURES = PLACES | CONTENTS
MIN_LIFT = 2.0  # a head has a role if that role's keys get this many times their share of uniform attention, …
MIN_EXCESS = 0.25  # … and exceed it by this much: (share - uniform) / (1 - uniform)
UNIFORM = "uniform"  # the role and kind, in all files, of a head whose attention is uniform, …
UNIFORM_ENTROPY = 0.95  # … that is, with this share of the entropy of uniform attention
HEAD_ROLES = (*ROLE_MEASURES, UNIFORM, "mixed")
HEAD_KINDS = ("positional", "semantic", UNIFORM, "unclear")
POSITIONS = 256  # position and content are separated over this many tokens at the beginning of a story
REPEATED = 50  # random tokens, repeated once to test for induction


def key_sets(batch: Batch, flags: torch.Tensor) -> torch.Tensor:
    """(B, SHARES, T, T) bool: which keys belong to each of SHARES.

    flags: (KINDS, words + 1) bool, which words are of each kind; the last is for tokens of no word.
    """
    same = (batch.tokens[:, :, None] == batch.tokens[:, None, :]).tril(-1)  # (B, query, key)
    after = F.pad(same, (1, 0))[:, :, :-1]  # the token before the key is that of the query
    beginning = torch.zeros_like(same)
    beginning[:, :, 0] = True
    of_kind = flags[:, batch.words].transpose(0, 1)[:, :, None].expand(-1, -1, same.size(1), -1)
    return torch.cat([torch.stack([same, after, beginning], 1), of_kind], 1)


class AttentionSums:
    """Sums over the attention of the H heads of a layer, and the measures that follow from them.

    A story's first token is not used as a query: it sees only itself.
    """

    def __init__(self, H: int, longest: int, device: torch.device):
        P = min(longest, POSITIONS)
        self.n_queries, self.n_pairs = 0, 0
        self.distance = self.distance_squared = 0.0  # over all visible pairs, whatever the attention
        self.shares, self.n_share_queries = torch.zeros(H, len(SHARES), device=device), 0
        self.offsets, self.n_offset_queries = torch.zeros(H, OFFSETS, device=device), [0] * OFFSETS
        self.attended_distance, self.entropy, self.squares = torch.zeros(3, H, device=device)
        self.cells = torch.zeros(H, P, P, device=device)  # attention by (query, key), summed over stories
        self.row_squares, self.row_uniform, self.n_rows = torch.zeros(H, P, device=device), 0, 0

    def add(self, attention: torch.Tensor, sets: torch.Tensor, visible: torch.Tensor, real: torch.Tensor):
        """attention (B, H, T, T), key sets (B, SHARES, T, T), visible (T, T), real (B, T)."""
        T, P = visible.size(0), self.cells.size(1)
        queries = real.clone()
        queries[:, 0] = False
        attention = attention * queries[:, None, :, None]
        sets = sets & visible & queries[:, None, :, None]
        positions = torch.arange(T, device=visible.device)
        distance = (positions[:, None] - positions) * visible  # (T, T), from query to key

        weights = torch.cat([distance.expand(len(sets), 1, T, T), sets], 1).float()  # (B, 1 + SHARES, T, T)
        sums = (attention.flatten(2) @ weights.flatten(2).transpose(1, 2)).sum(0)  # (H, 1 + SHARES)
        self.attended_distance += sums[:, 0]
        self.shares += sums[:, 1:]
        self.n_share_queries += sets.any(-1).sum((0, 2))
        for offset in range(min(OFFSETS, int(visible[-1].sum()))):
            self.offsets[:, offset] += attention.diagonal(-offset, 2, 3).sum((0, 2))
            self.n_offset_queries[offset] += queries[:, offset:].sum().item()
        self.n_queries += queries.sum().item()
        n_queries_at = queries.sum(0)  # (T,)
        self.n_pairs += (n_queries_at * visible.sum(1)).sum().item()
        self.distance += (n_queries_at * distance.sum(1)).sum().item()
        self.distance_squared += (n_queries_at * (distance**2).sum(1)).sum().item()

        squares = attention.square().sum((0, 3))  # (H, T)
        self.squares += squares.sum(1)
        self.entropy += torch.special.entr(attention).sum((0, 2, 3))
        self.cells[:, :T, :T] += attention[:, :, :P, :P].sum(0)
        self.row_squares[:, :T] += squares[:, :P]
        self.n_rows += F.pad(n_queries_at, (0, max(P - T, 0)))[:P]
        self.row_uniform += F.pad(n_queries_at / visible.sum(1), (0, max(P - T, 0)))[:P]

    def measures(self) -> dict[str, torch.Tensor]:
        """(H,) each: distance in tokens, entropy in nats, shares of the attention, (H, OFFSETS) "offsets": the share of
        the token so many back; and

        distance_correlation: of attention and distance over all visible pairs.
        position: of the deviation from uniform attention, the share that is the same in all stories, and so due to the
        positions of query and key; the rest is due to content (an analysis of variance, with one cell for each pair).
        """
        mean, n = self.n_queries / self.n_pairs, self.n_pairs  # the attention of a query sums to 1
        covariance = self.attended_distance / n - mean * self.distance / n
        distance_variance = self.distance_squared / n - (self.distance / n) ** 2
        variance = self.squares / n - mean**2
        shares = self.shares / self.n_share_queries.clamp(min=1)
        enough = self.n_rows > 1
        n_rows = self.n_rows[enough]
        by_content = self.row_squares[:, enough] - (self.cells[:, enough] ** 2).sum(-1) / n_rows
        by_content = (by_content * n_rows / (n_rows - 1)).sum(1)  # unbiased: few stories are close to their mean
        not_uniform = (self.row_squares - self.row_uniform)[:, enough].sum(1)
        return dict(
            distance=self.attended_distance / self.n_queries,
            distance_correlation=covariance / (variance * distance_variance).sqrt().clamp(min=1e-12),
            position=(1 - by_content / not_uniform).clamp(0, 1).where(not_uniform > 1e-6 * self.n_queries, 0.0),
            entropy=self.entropy / self.n_queries,
            offsets=self.offsets / torch.tensor(self.n_offset_queries, device=shares.device).clamp(min=1),
            **{name: shares[:, i] for i, name in enumerate(SHARES)},
        )


class HeadStatistics:
    """Collects what the heads of all layers do, and what a head with uniform attention would do."""

    def __init__(self, model: GPTNeo, corpus: TaggedCorpus):
        self.model = model
        device = model.wte.weight.device
        self.flags = F.pad(torch.stack([corpus.is_kind(kind) for kind in KINDS]), (0, 1)).to(device)
        longest = max(len(story.tokens) for story in corpus.stories)
        self.heads = [AttentionSums(model.config.n_head, longest, device) for _ in model.blocks]
        self.uniform = [AttentionSums(1, longest, device) for _ in model.blocks]

    def start(self, batch: Batch):
        self.batch, self.sets = batch, key_sets(batch, self.flags)

    def add(self, layer: int, attention: torch.Tensor):
        visible = visible_keys(attention.size(2), self.model.config.window(layer), attention.device)
        uniform = (visible / visible.sum(1, keepdim=True)).expand(len(attention), 1, -1, -1)
        self.heads[layer].add(attention, self.sets, visible, self.batch.real)
        self.uniform[layer].add(uniform, self.sets, visible, self.batch.real)

    def rows(self, induction_scores: tuple[torch.Tensor, torch.Tensor]) -> list[dict]:
        """heads.csv: a row for each head, with its measures and, as NAME_uniform, those of uniform attention.

        induction_scores: what `induction` returns. offset: the distance, 2 to 8 tokens back, that gets most.
        """
        rows = []
        for layer, (heads, uniform) in enumerate(zip(self.heads, self.uniform)):
            measures, baseline = heads.measures(), uniform.measures()
            measures["induction"], baseline["induction"] = (scores[layer] for scores in induction_scores)
            offsets, uniform_offsets = measures.pop("offsets").cpu(), baseline.pop("offsets")[0].cpu()
            for head in range(self.model.config.n_head):
                best_offset = offsets[head, 2:].argmax().item() + 2
                places = dict(itself=0, previous=1, offset_share=best_offset)
                row = {name: offsets[head, offset].item() for name, offset in places.items()} | dict(offset=best_offset)
                row |= {name: values[head].item() for name, values in measures.items()}
                row |= {f"{name}_uniform": uniform_offsets[offset].item() for name, offset in places.items()}
                row |= {f"{name}_uniform": values[0].item() for name, values in baseline.items() if name != "position"}
                rows.append(dict(layer=layer, head=head) | name_role(row))
        return rows


def name_role(row: dict) -> dict:
    """The row, preceded by what it means in words: the head's role, if it clearly has one; and its kind.

    Positional: position explains most of how its attention differs from uniform. Semantic: it does not, and the role
    says which content does. Unclear: neither. By the earlier criterion, kind_by_correlation, what is not correlated
    with distance is semantic.
    """
    clear = {}
    for role, name in ROLE_MEASURES.items():
        share, uniform = row[name], row[f"{name}_uniform"]
        if share >= max(MIN_LIFT * uniform, uniform + MIN_EXCESS * (1 - uniform)):
            clear[role] = share
    role = max(clear, key=clear.get, default="mixed")
    kind = "positional" if row["position"] > 0.5 else "semantic" if role in CONTENTS else "unclear"
    if row["entropy"] >= UNIFORM_ENTROPY * row["entropy_uniform"]:
        role = kind = UNIFORM
    by_correlation = "positional" if abs(row["distance_correlation"]) > 0.5 else "semantic"
    return dict(role=role, kind=kind, kind_by_correlation=by_correlation) | row


@torch.no_grad()
def induction(
    model: GPTNeo, corpus: TaggedCorpus, prefix: Sequence[int], seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Induction scores on repeated random tokens (Olsson et al., 2022): in the second copy, the mean attention to the
    token that followed the same token in the first, which only induction explains. (L, H); and (L, 1), uniform's."""
    known = torch.cat([story.tokens for story in corpus.stories]).unique()
    n = min(REPEATED, len(known), (model.config.block_size - len(prefix)) // 2)
    generator = torch.Generator().manual_seed(seed)
    once = torch.stack([known[torch.randperm(len(known), generator=generator)[:n]] for _ in range(16)])
    tokens = torch.cat([torch.tensor(prefix, dtype=torch.long).expand(16, -1), once, once], 1)
    queries = torch.arange(len(prefix) + n, tokens.size(1))
    keys = queries - n + 1
    scores, uniform = [], []

    def record(name, tensor):
        if name.endswith("pattern"):
            scores.append(tensor[:, :, queries, keys].mean((0, 2)))
            visible = visible_keys(tensor.size(2), model.config.window(len(uniform)), tensor.device)
            uniform.append((visible / visible.sum(1, keepdim=True))[queries, keys].mean()[None])

    run(model, tokens.to(model.wte.weight.device), record, with_pattern=True)
    return torch.stack(scores).cpu(), torch.stack(uniform).cpu()
