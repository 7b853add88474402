"""
The known corpora, and the stories of a file in any format that we read, one at a time, not yet cleaned.

>>> next(read_stories(Path("mine.jsonl.gz")))
'Once upon a time…'
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from common.hub import from_hub
from corpus.instruct_headers import add_own_header
from corpus.tokenizer import END_OF_TEXT

STORIES, INSTRUCT = "roneneldan/TinyStories", "roneneldan/TinyStoriesInstruct"  # by an author of arXiv:2305.07759
DOWNLOADS = {  # corpus -> its data set on the hub, and its files there without the ending -train.txt or -valid.txt
    "tinystories": (STORIES, "TinyStories"),
    "tinystories-v2": (STORIES, "TinyStoriesV2-GPT4"),
    "instruct": (INSTRUCT, "TinyStories-Instruct"),
    "instruct-ood": (INSTRUCT, "TinyStories-Instruct"),
}
BUILTIN = ("builtin", "builtin-instruct", "builtin-instruct-ood")
CORPORA = (*DOWNLOADS, *BUILTIN)
# What meta.json says about the headers above the stories (corpus/instruct_headers.py), and for which corpora.
ANY, OOD = "any fields together", "in train never words and summary together"
HEADERS = {"instruct": ANY, "instruct-ood": OOD, "builtin-instruct": ANY, "builtin-instruct-ood": OOD}


def download(corpus: str) -> tuple[list[str], list[Path]]:
    """The addresses and the local copies of the training and the validation file of a corpus of DOWNLOADS."""
    repository, stem = DOWNLOADS[corpus]
    names = [f"{stem}-{split}.txt" for split in ("train", "valid")]
    directory = from_hub(repository, names, kind="dataset")
    addresses = [f"https://huggingface.co/datasets/{repository}/resolve/main/{name}" for name in names]
    return addresses, [directory / name for name in names]


def read_stories(path: Path, errors: str = "strict", headers: bool = False) -> Iterator[str]:
    """The text of every story in a .txt or .jsonl file, which may be compressed (.gz).

    errors: bytes of a .txt that are not UTF-8 are a ValueError ("strict"), or become U+FFFD ("replace").
    headers: with the words, features, summary and sentence of a .jsonl's row as a header, if it has some.
    """
    ending = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if ending not in (".txt", ".jsonl"):
        raise ValueError(f"{path}: unknown format; its name must end in .txt, .jsonl, .txt.gz or .jsonl.gz")
    return split_file(path, END_OF_TEXT, errors) if ending == ".txt" else json_stories(path, headers)


def split_file(path: Path, separator: str, errors: str = "strict") -> Iterator[str]:
    """The file's text, split at each separator; the last piece only if it is not blank."""
    rest = ""
    bar = tqdm(desc=f"reading {path.name}", total=path.stat().st_size, unit="B", unit_scale=True, disable=None)
    with path.open("rb") as raw, bar:
        data = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        text = io.TextIOWrapper(data, encoding="utf-8-sig", errors=errors, newline="")
        try:
            while block := text.read(max(1 << 20, len(rest))):  # doubles: otherwise a long line takes n² time
                *complete, rest = (rest + block).split(separator)
                yield from complete
                bar.update(raw.tell() - bar.n)
        except UnicodeDecodeError:
            raise ValueError(f"{path}: not UTF-8 text, somewhere before byte {data.tell():,}; convert it") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: broken gzip ({error}); download or compress it again") from None
    if rest.strip():
        yield rest


def json_stories(path: Path, headers: bool) -> Iterator[str]:
    """Stories from one JSON object per line."""
    for number, line in enumerate(split_file(path, "\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
                story = row["text"] if "text" in row else row["story"]
                story = add_own_header(story, row) if headers else story
                story.encode()  # half a character cannot be
            except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
                hint = 'a line must be an object such as {"text": "A fox ran…", "words": ["fox"]}, or with "story"'
                raise ValueError(f"{path}: no story in line {number}; {hint}") from None
            yield story
