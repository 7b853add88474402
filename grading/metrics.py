"""
Metrics without a judge: held-out loss; whether stories end, how much they repeat themselves, which words they use.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from common.files import read_json
from corpus.token_files import load_meta_and_tokens
from corpus.tokenizer import Tokenizer
from generation.samples_file import run_of
from grading import compare_models
from grading.compare_models import Finding
from grading.judge_controls import TRUE
from grading.ledger import Run
from grading.story import Story
from training.run_directory import read_log

CORPUS_TOKENS = 20_000_000  # of the training split, to collect words from: about 80 MB of text, ten seconds
NGRAM = 4  # words; a repeated one counts as a repetition
STORY_FIGURES = ("ended", "repeated", "words", "unknown")


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", text.lower().replace("’", "'"))


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n))))


def story_figures(story: Story, finished: bool | None, known: set[str] | None) -> dict[str, float]:
    """The figures of one completion:

    ended     1 if the model ended it by itself, 0 if it was cut; NaN if unknown
    repeated  share of its 4-grams of words that came earlier in the story or its prompt; NaN if it has none
    words     number of words
    unknown   share of its words that are neither in the corpus (`known`) nor in the prompt; NaN without a corpus
    """
    before, words = words_of(story.prompt), words_of(story.completion)
    seen, again = set(ngrams(before, NGRAM)), 0
    of_completion = ngrams(before[1 - NGRAM :] + words, NGRAM)
    for ngram in of_completion:
        again += ngram in seen
        seen.add(ngram)
    strange = set(words) - known - set(before) if known is not None else set()
    return dict(
        ended=np.nan if finished is None else float(finished),
        repeated=again / len(of_completion) if words and of_completion else np.nan,
        words=float(len(words)),
        unknown=sum(word in strange for word in words) / len(words) if words and known is not None else np.nan,
    )


def distinct(completions: Iterable[str], n: int, limit: int) -> float:
    """Distinct n-grams as a share of all in the first `limit` words (a fixed number, as longer texts repeat more)."""
    grams, left = [], limit
    for completion in completions:
        words = words_of(completion)[:left]
        left -= len(words)
        grams += ngrams(words, n)
    return len(set(grams)) / len(grams) if grams else np.nan


def held_out(run: Path, last: bool = False) -> tuple[float, float]:
    """Validation loss (nats per token) and bpb of the weights that wrote the samples: the best in log.csv, or the last;
    NaN if unknown."""
    path = run / "log.csv"
    rows = [row for row in read_log(path) if row["val_loss"]] if path.exists() else []
    rows = rows[-1:] if last else rows
    row = min(rows, key=lambda row: float(row["val_loss"]), default=dict(val_loss="nan", bpb="nan"))
    return float(row["val_loss"]), float(row["bpb"])


def corpus_words(directory: Path) -> set[str]:
    """The words in the first CORPUS_TOKENS tokens of a corpus that prepare.py made."""
    meta, tokens = load_meta_and_tokens(directory, "train")
    tokenizer, tokens, words = Tokenizer(meta["gpt2_ids"]), tokens[:CORPUS_TOKENS], set()
    ends = np.append(np.flatnonzero(tokens == tokenizer.end_of_text)[::1000], len(tokens))
    for start, end in zip(tqdm(np.append(0, ends), "words of the corpus", delay=2, leave=False, disable=None), ends):
        words.update(words_of(tokenizer.decode(tokens[start:end].tolist())))
    return words


def compute_metrics(runs: Sequence[Run], endings: Sequence[Story], data: Path | None) -> list[Finding]:
    """All metrics of the runs, and of the true endings of their prompts. data: a corpus to use instead of their own."""
    findings, known = [], {}
    sources = {
        run.name: (run.stories, [row.get("finished") for row in run.rows], known_corpus(run, data)) for run in runs
    }
    corpora = {corpus for _, _, corpus in sources.values()}
    if len(corpora - {None}) > 1:
        print("these runs were trained on different corpora: their loss and bpb are not on the same text")
    if endings:
        sources[TRUE] = (endings, [None] * len(endings), corpora.pop() if len(corpora) == 1 else None)
    limit = min(sum(len(words_of(story.completion)) for story in stories) for stories, _, _ in sources.values())
    for name, (stories, finished, corpus) in sources.items():
        if corpus and corpus not in known:
            known[corpus] = corpus_words(corpus)
        vectors = {}
        for story, ended in zip(stories, finished):
            vectors[story] = story_figures(story, ended, known.get(corpus))
        findings += compare_models.compare({name: stories}, [name], vectors, STORY_FIGURES, judge="")
        for n in (1, 2, 3):
            value = distinct((story.completion for story in stories), n, limit)
            findings.append(Finding("mean", "", name, f"distinct-{n}", value))
    for run in runs:
        last = str(run.rows[0].get("model", "")).endswith("ckpt.pt")  # sample.py --checkpoint last
        for figure, value in zip(("loss", "bpb"), held_out(run_of(run.directory), last)):
            findings.append(Finding("mean", "", run.name, figure, value))
    return findings


def corpus_of_run(directory: Path) -> Path | None:
    """The corpus that the model behind these samples was trained on; None if train.py did not train it: a published
    model, or one behind an API."""
    settings = run_of(directory) / "config.json"
    if not settings.exists():
        return None
    config = read_json(settings)
    return Path(config.get("data_dir", ""), config.get("data", ""))


def known_corpus(run: Run, data: Path | None) -> Path | None:
    """The corpus that the run's words are looked up in, if it is here. data: a corpus to use instead of its own."""
    corpus = data or corpus_of_run(run.directory)
    if not data and corpus and not (corpus / "meta.json").exists():
        print(f"{corpus}: no such corpus here, so unknown words of {run.name} are not counted; name one with --data")
        return None
    return corpus
