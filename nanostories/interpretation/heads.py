"""
Attention heads, measured over many stories: how far they look, how sharply, and the share of their
attention that goes to the previous token, to names, to the subject of the sentence, to tokens after
an earlier same one …; and the same for uniform attention.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from model import GPTNeo
from nanostories.interpretation.hooks import run_with_cache, visible_keys
from nanostories.interpretation.word_classes import WORD_CLASSES, TaggedCorpus, TaggedStory

# Sets of keys whose share of the attention is measured, over the queries that can see at least one
# of them: by words, such as nouns, …
CLASS_SETS = [name if name == "punctuation" else f"{name}s" for name in WORD_CLASSES]
WORD_SETS = (*CLASS_SETS, "sentence_end", "subject", "main_character")
# … and by places and tokens
KEY_SETS = ("itself", "previous", "beginning", "same_token", "after_same", *WORD_SETS)
PLACES = {"itself": "itself", "previous token": "previous", "beginning": "beginning"}
CONTENT_COLUMNS = ("same_token", "induction", *WORD_SETS)
CONTENTS = {column.replace("_", " "): column for column in CONTENT_COLUMNS}
ROLES = PLACES | CONTENTS  # {role: the column of heads.csv that decides it}
# A head has a role if that role's keys get this many times their share of uniform attention, …
MIN_LIFT = 2.0
MIN_EXCESS = 0.25  # … and exceed it by this much: (share - uniform) / (1 - uniform)
UNIFORM_ENTROPY = 0.95  # a head is uniform if its entropy is this share of uniform attention's
REPEATED = 50  # random tokens, repeated once to test for induction


def key_features(story: TaggedStory, corpus: TaggedCorpus) -> torch.Tensor:
    """(KEY_SETS + 3, T, T): what each key is to each query: 1 if it belongs to a set, else 0, for
    all of KEY_SETS; then 1, its distance, its distance squared."""
    tokens = story.tokens
    same = (tokens[:, None] == tokens).tril(-1)  # (query, key)
    after = F.pad(same, (1, 0))[:, :-1]  # the token before the key is that of the query
    positions = torch.arange(len(tokens), device=tokens.device).expand_as(same)
    distance = positions.T - positions
    is_kind = F.pad(torch.from_numpy(corpus.kind_flags()), (0, 1))  # the last: no word
    kinds = is_kind.to(tokens.device)[:, story.words]
    sets = torch.stack([distance == 0, distance == 1, positions == 0, same, after])
    numbers = torch.stack([torch.ones_like(distance), distance, distance**2])
    parts = parts_of_text(story, corpus, kinds)
    kinds = kinds[:, None].expand(-1, *same.shape)  # the same for each query
    return torch.cat([sets, kinds, parts, numbers]).float()


def parts_of_text(story: TaggedStory, corpus: TaggedCorpus, kinds: torch.Tensor) -> torch.Tensor:
    """(3, query, key) bool: keys that end a sentence before the query; that are the subject of the
    query's sentence, before it: the last noun, pronoun or name before the first verb; that name the
    main character: the one who is named most often. kinds: (WORD_CLASSES, T) bool."""
    noun, verb, _, pronoun, name, _ = kinds
    marks = [i for i, word in enumerate(corpus.words) if set(word) & set(".!?")]
    is_end = torch.isin(story.words, story.words.new_tensor(marks))
    sentence = is_end.cumsum(0) - is_end.long()
    together = sentence[:, None] == sentence  # (T, T): whether two tokens share a sentence
    verbs = together & verb
    # (T,): before the first verb of a sentence that has one; the last of these is the subject.
    candidates = (noun | pronoun | name) & ~verbs.tril().any(1) & verbs.any(1)
    is_subject = candidates & ~(together & candidates).triu(1).any(1)
    # minlength: argmax of nothing fails where there is no name; is_main is False then anyway
    most_named = story.words[name & story.ends].bincount(minlength=1).argmax()
    is_main = name & (story.words == most_named)
    subject = (together & is_subject).tril(-1)
    ends_before = is_end.expand_as(subject).tril(-1)
    return torch.stack([ends_before, subject, is_main.expand_as(subject)])


class HeadSums:
    """Sums over the attention of the H heads of a layer, and the measures that follow from them.

    One more head, the last of all, attends uniformly. A story's first token is no query: it sees
    only itself.
    """

    def __init__(self, window: int):
        self.window = window
        self.entropy = 0  # (H + 1,)
        self.squares = 0  # of attention, (H + 1,)
        # Attention times each feature of keys, summed over stories, queries and keys that they see,
        # (H + 2, KEY_SETS + 3). The last row: the features alone, whatever the attention.
        self.sums = 0
        self.n_share_queries = 0  # with such a key, (KEY_SETS + 3,)

    def add(self, attention: torch.Tensor, features: torch.Tensor) -> None:
        """attention (H, T, T), of one story; features (KEY_SETS + 3, T, T) of key_features."""
        attention = with_uniform(attention, self.window)[:, 1:]
        visible = attention[-1] > 0
        features = features[:, 1:] * visible
        self.entropy += torch.special.entr(attention).sum((1, 2))
        self.squares += attention.square().sum((1, 2))
        self.n_share_queries += features.any(2).sum(1)
        pairs = torch.cat([attention, visible[None]])
        self.sums += torch.einsum("hqk,fqk->hf", pairs, features).double()

    def measures(self) -> dict[str, list[float]]:
        """H + 1 values each: distance in tokens; its correlation with attention, over all visible
        pairs; entropy in nats; the shares of KEY_SETS, without sets that no query sees."""
        # Of the last features, 1, distance and distance squared: (H + 2,) each, the last of these
        # over all visible pairs
        weights, distances, squared_distances = self.sums[:, -3:].T
        n_queries = weights[0]  # the attention of a query sums to 1
        n_pairs = weights[-1]
        attended = distances[:-1]
        mean = n_queries / n_pairs
        mean_distance = distances[-1] / n_pairs
        covariance = attended / n_pairs - mean * mean_distance
        variance = self.squares / n_pairs - mean**2
        variance_of_distance = squared_distances[-1] / n_pairs - mean_distance**2
        deviations = (variance * variance_of_distance).sqrt().clamp(min=1e-12)
        measures = {
            "distance": attended / n_queries,
            "distance_correlation": covariance / deviations,
            "entropy": self.entropy / n_queries,
        }
        for i, name in enumerate(KEY_SETS):
            n = self.n_share_queries[i]
            if n > 0:
                measures[name] = self.sums[:-1, i] / n
        return {name: values.tolist() for name, values in measures.items()}


def head_rows(layers: Sequence[HeadSums], induction: torch.Tensor) -> list[dict]:
    """heads.csv: a row for each head, with its measures and, as NAME_uniform, those of uniform
    attention. induction: of `induction_shares`."""
    rows = []
    for layer, sums in enumerate(layers):
        measures = sums.measures()
        measures["induction"] = induction[layer].tolist()
        for head in range(len(measures["entropy"]) - 1):
            measured = {}
            for name, values in measures.items():
                measured[name] = values[head]
                measured[f"{name}_uniform"] = values[-1]
            rows.append({"layer": layer, "head": head, "role": name_role(measured)} | measured)
    return rows


def name_role(row: dict) -> str:
    """The role that the head clearly has, "uniform", or "mixed"."""
    if row["entropy"] >= UNIFORM_ENTROPY * row["entropy_uniform"]:
        return "uniform"
    clear = {}
    for role, column in ROLES.items():
        if column in row:
            share = row[column]
            uniform = row[f"{column}_uniform"]
            # By this, not by the share: it favors the main character over names, if both are clear
            excess = (share - uniform) / (1 - uniform)
            if share >= MIN_LIFT * uniform and excess >= MIN_EXCESS:
                clear[role] = excess
    return max(clear, key=clear.get, default="mixed")


def with_uniform(attention: torch.Tensor, window: int) -> torch.Tensor:
    """(H, T, T) -> (H + 1, T, T): one more head, the last, attends uniformly."""
    visible = visible_keys(attention.size(1), window, attention.device)
    uniform = visible / visible.sum(1, keepdim=True)
    return torch.cat([attention, uniform[None]])


def induction_shares(model: GPTNeo, corpus: TaggedCorpus, prefix: Sequence[int]) -> torch.Tensor:
    """(L, H + 1): on random tokens of the corpus that are repeated once, the attention to what
    followed the same token before, as nothing else leads there (Olsson et al., 2022)."""
    known = torch.cat([story.tokens for story in corpus.stories]).unique()
    n = min(REPEATED, len(known), (model.config.block_size - len(prefix)) // 2)
    draws = torch.ones(16, len(known)).multinomial(n, generator=torch.Generator().manual_seed(0))
    once = known[draws]  # (16, n), all different in each row
    start = known.new_tensor(prefix).expand(16, -1)
    _, cache = run_with_cache(model, torch.cat([start, once, once], 1))
    shares = []
    for layer in range(model.config.n_layer):
        attention = cache[f"blocks.{layer}.pattern"].mean(0)
        attention = with_uniform(attention, model.config.window(layer))
        # The queries are the second half; the key is n - 1 tokens before each.
        shares.append(attention.diagonal(1 - n, 1, 2)[:, -n:].mean(1))
    return torch.stack(shares)
