"""
What attention heads look at, measured over many stories: how far, how sharply, and how much of it goes to the previous
token, to names, to what followed the same token before … and what looking everywhere alike would give of each.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from interpretation.hooks import run, visible
from interpretation.word_classes import Batch, Corpus
from model import GPTNeo

# Sets of keys whose share of the attention is measured, over the queries that can see one of them.
SHARES = ("previous", "same_token", "after_same", "punctuation", "names", "beginning")
# What a head is called after, and the measure that decides.
ROLES = {"previous token": "previous", "same token": "same_token", "induction": "induction"}
ROLES |= {name: name for name in ("punctuation", "names", "beginning")}
CLEAR = 0.4  # a head is called after what gets this share of its attention, if that is …
LIFT = 2.0  # … so many times what looking everywhere alike would give
ALIKE = 0.98  # it looks everywhere alike if it has so much of the entropy of that
POSITIONS = 256  # the first ones of a story, in which position and content are told apart
REPEATED = 50  # random tokens, twice in a row, that show induction


def key_sets(batch: Batch, flags: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, SHARES, T, T) bool. flags: of every word, if it is "punctuation" and if of "names"; the last is for none."""
    same = (batch.tokens[:, :, None] == batch.tokens[:, None, :]).tril(-1)  # (B, query, key)
    everywhere = torch.ones_like(same)
    beginning = everywhere.clone()
    beginning[:, :, 1:] = False
    sets = dict(
        previous=everywhere.tril(-1).triu(-1),
        same_token=same,
        after_same=F.pad(same, (1, 0))[:, :, :-1],  # the token before the key is that of the query
        punctuation=flags["punctuation"][batch.words][:, None].expand_as(same),
        names=flags["names"][batch.words][:, None].expand_as(same),
        beginning=beginning,
    )
    return torch.stack([sets[name] for name in SHARES], 1)


class Tally:
    """Sums over the attention of the H heads of a layer. A story's first token is no query: it sees only itself."""

    def __init__(self, H: int, longest: int, device: torch.device):
        P = min(longest, POSITIONS)
        self.n_queries, self.n_pairs = 0, 0
        self.distance = self.distance_squared = 0.0  # over all pairs that are seen, whatever the attention
        self.shares, self.n_share_queries = torch.zeros(H, len(SHARES), device=device), 0
        self.attended_distance, self.entropy, self.squares = torch.zeros(3, H, device=device)
        self.cells = torch.zeros(H, P, P, device=device)  # attention at every place, over all stories
        self.row_squares, self.row_uniform, self.n_rows = torch.zeros(H, P, device=device), 0, 0

    def add(self, attention: torch.Tensor, sets: torch.Tensor, seen: torch.Tensor, real: torch.Tensor):
        """attention (B, H, T, T), key sets (B, SHARES, T, T), seen (T, T), real (B, T)."""
        T, P = seen.size(0), self.cells.size(1)
        queries = real.clone()
        queries[:, 0] = False
        attention = attention * queries[:, None, :, None]
        sets = sets & seen & queries[:, None, :, None]
        positions = torch.arange(T, device=seen.device)
        distance = (positions[:, None] - positions) * seen  # (T, T), of the key from the query

        weights = torch.cat([distance.expand(len(sets), 1, T, T), sets], 1).float()  # (B, 1 + SHARES, T, T)
        sums = (attention.flatten(2) @ weights.flatten(2).transpose(1, 2)).sum(0)  # (H, 1 + SHARES)
        self.attended_distance += sums[:, 0]
        self.shares += sums[:, 1:]
        self.n_share_queries += sets.any(-1).sum((0, 2))
        self.n_queries += queries.sum().item()
        n_queries_at = queries.sum(0)  # (T,)
        self.n_pairs += (n_queries_at * seen.sum(1)).sum().item()
        self.distance += (n_queries_at * distance.sum(1)).sum().item()
        self.distance_squared += (n_queries_at * (distance**2).sum(1)).sum().item()

        squares = attention.square().sum((0, 3))  # (H, T)
        self.squares += squares.sum(1)
        self.entropy += torch.special.entr(attention).sum((0, 2, 3))
        self.cells[:, :T, :T] += attention[:, :, :P, :P].sum(0)
        self.row_squares[:, :T] += squares[:, :P]
        self.n_rows += F.pad(n_queries_at, (0, max(P - T, 0)))[:P]
        self.row_uniform += F.pad(n_queries_at / seen.sum(1), (0, max(P - T, 0)))[:P]

    def measures(self) -> dict[str, torch.Tensor]:
        """(H,) each: distance in tokens, entropy in nats, shares of the attention, and

        distance_correlation: of attention and distance over all pairs that are seen.
        position: of what is not looking everywhere alike, the share that is the same in all stories, so is due to the
        place of query and key; the rest is due to content (an analysis of variance with a cell for every place).
        """
        mean, n = self.n_queries / self.n_pairs, self.n_pairs  # the attention of a query sums to 1
        covariance = self.attended_distance / n - mean * self.distance / n
        distance_variance = self.distance_squared / n - (self.distance / n) ** 2
        variance = self.squares / n - mean**2
        shares = self.shares / self.n_share_queries.clamp(min=1)
        counted = self.n_rows > 1
        n_rows = self.n_rows[counted]
        by_content = self.row_squares[:, counted] - (self.cells[:, counted] ** 2).sum(-1) / n_rows
        by_content = (by_content * n_rows / (n_rows - 1)).sum(1)  # unbiased: a mean of few stories is near to each
        not_alike = (self.row_squares - self.row_uniform)[:, counted].sum(1)
        return dict(
            distance=self.attended_distance / self.n_queries,
            distance_correlation=covariance / (variance * distance_variance).sqrt().clamp(min=1e-12),
            position=(1 - by_content / not_alike).clamp(0, 1).where(not_alike > 1e-6 * self.n_queries, 0.0),
            entropy=self.entropy / self.n_queries,
            **{name: shares[:, i] for i, name in enumerate(SHARES)},
        )


class HeadReader:
    """Gathers what the heads of all layers do; and what a head would do that looks everywhere alike."""

    def __init__(self, model: GPTNeo, corpus: Corpus):
        self.model = model
        device = model.wte.weight.device
        flags = {"names": corpus.of_kind("name"), "punctuation": corpus.of_kind("punctuation")}
        self.flags = {name: F.pad(flag, (0, 1)).to(device) for name, flag in flags.items()}
        longest = max(len(story.tokens) for story in corpus.stories)
        self.heads = [Tally(model.config.n_head, longest, device) for _ in model.blocks]
        self.alike = [Tally(1, longest, device) for _ in model.blocks]

    def start(self, batch: Batch):
        self.batch, self.sets = batch, key_sets(batch, self.flags)

    def add(self, layer: int, attention: torch.Tensor):
        seen = visible(attention.size(2), self.model.config.window(layer), attention.device)
        alike = (seen / seen.sum(1, keepdim=True)).expand(len(attention), 1, -1, -1)
        self.heads[layer].add(attention, self.sets, seen, self.batch.real)
        self.alike[layer].add(alike, self.sets, seen, self.batch.real)

    def rows(self, repeats: tuple[torch.Tensor, torch.Tensor]) -> list[dict]:
        """A row for each head: the measures, and as NAME_alike those of looking everywhere alike."""
        rows = []
        for layer, (heads, alike) in enumerate(zip(self.heads, self.alike)):
            measures, plain = heads.measures(), alike.measures()
            measures["induction"], plain["induction"] = repeats[0][layer], repeats[1][layer]
            for head in range(self.model.config.n_head):
                row = {name: values[head].item() for name, values in measures.items()}
                row |= {f"{name}_alike": values[0].item() for name, values in plain.items() if name != "position"}
                rows.append(dict(layer=layer, head=head) | named(row))
        return rows


def named(row: dict) -> dict:
    """The row behind what it says in words: positional or semantic, by the earlier criterion and by the share of its
    attention that position explains, and the role of a head that clearly has one."""
    earlier = "positional" if abs(row["distance_correlation"]) > 0.5 else "semantic"
    kind = "positional" if row["position"] > 0.5 else "semantic"
    clear = {role: row[name] for role, name in ROLES.items() if row[name] >= max(CLEAR, LIFT * row[f"{name}_alike"])}
    role = max(clear, key=clear.get, default="mixed")
    if row["entropy"] >= ALIKE * row["entropy_alike"]:
        role = kind = "everywhere alike"
    return dict(role=role, kind=kind, kind_by_correlation=earlier) | row


@torch.no_grad()
def induction(model: GPTNeo, corpus: Corpus, prefix: Sequence[int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """How much attention goes to the token that followed the same token before, where random tokens come twice in a
    row: nothing but induction explains it. (L, H); and (L, 1), that of looking everywhere alike."""
    found = torch.cat([story.tokens for story in corpus.stories]).unique()
    n = min(REPEATED, len(found), (model.config.block_size - len(prefix)) // 2)
    generator = torch.Generator().manual_seed(seed)
    once = torch.stack([found[torch.randperm(len(found), generator=generator)[:n]] for _ in range(16)])
    tokens = torch.cat([torch.tensor(prefix, dtype=torch.long).expand(16, -1), once, once], 1)
    queries = torch.arange(len(prefix) + n, tokens.size(1))
    keys = queries - n + 1
    scores, alike = [], []

    def see(name, tensor):
        if name.endswith("attention"):
            scores.append(tensor[:, :, queries, keys].mean((0, 2)))
            seen = visible(tensor.size(2), model.config.window(len(alike)), tensor.device)
            alike.append((seen / seen.sum(1, keepdim=True))[queries, keys].mean()[None])

    run(model, tokens.to(model.wte.weight.device), see)
    return torch.stack(scores).cpu(), torch.stack(alike).cpu()
