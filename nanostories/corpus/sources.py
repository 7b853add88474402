"""
The known corpora, and the stories of a file in any format that we read, one at a time, not yet
cleaned.

>>> next(read_stories(Path("mine.jsonl.gz")))
'Once upon a time…'
"""

import gzip
import io
import itertools
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from nanostories.cli import UserError
from nanostories.corpus.instruct_headers import FIELDS, add_own_header
from nanostories.corpus.tokenizer import END_OF_TEXT
from nanostories.hub import from_hub

STORIES, INSTRUCT = (
    "roneneldan/TinyStories",
    "roneneldan/TinyStoriesInstruct",
)  # by an author of arXiv:2305.07759
INSTRUCT_FILES = (INSTRUCT, "TinyStories-Instruct-train.txt", "TinyStories-Instruct-valid.txt")
# corpus -> its data set on the hub, and there the files of its training and of its validation
# stories
DOWNLOADS = {
    "tinystories": (STORIES, "TinyStories-train.txt", "TinyStories-valid.txt"),
    "tinystories-v2": (STORIES, "TinyStoriesV2-GPT4-train.txt", "TinyStoriesV2-GPT4-valid.txt"),
    "tinystories-clean": ("karpathy/tinystories-gpt4-clean", "*.parquet", "*.parquet"),
    "simplestories": (
        "SimpleStories/SimpleStories",
        "data/train-*.parquet",
        "data/test-*.parquet",
    ),  # arXiv:2504.09184
    "instruct": INSTRUCT_FILES,
    "instruct-ood": INSTRUCT_FILES,
}
# The rows for training and for validation where the data set's card says so; it leaves the first
# 10,000 for a test.
ROWS = {"tinystories-clean": ((20_000, None), (10_000, 20_000))}
BUILTIN = ("builtin", "builtin-instruct", "builtin-instruct-ood")
CORPORA = (*DOWNLOADS, *BUILTIN)
# What meta.json says about the headers above the stories (nanostories/corpus/instruct_headers.py),
# and for which corpora.
ANY, OOD = "any fields together", "in train never words and summary together"
HEADERS = {
    "instruct": ANY,
    "instruct-ood": OOD,
    "builtin-instruct": ANY,
    "builtin-instruct-ood": OOD,
}


def download(corpus: str) -> tuple[list[str], list[Iterator[str]]]:
    """The addresses of a corpus of DOWNLOADS, and its training and its validation stories."""
    repository, *patterns = DOWNLOADS[corpus]
    if ".parquet" in patterns[0]:
        pyarrow_parquet()  # before the download, which is large
    directory = from_hub(repository, patterns, kind="dataset")
    files = [sorted(directory.glob(pattern)) for pattern in patterns]
    for pattern, paths in zip(patterns, files):
        # Without a network the cache may hold only some of them: -of-00007 is how many there are.
        if not paths or ("-of-" in paths[0].name and f"-of-{len(paths):05}" not in paths[0].name):
            raise UserError(
                f"{repository!r} from the hub: not all files {pattern} are here; run again to"
                " resume"
            )
    splits = [
        itertools.chain.from_iterable(read_stories(path, errors="replace") for path in paths)
        for paths in files
    ]
    if corpus in ROWS:
        splits = [itertools.islice(stories, *rows) for stories, rows in zip(splits, ROWS[corpus])]
    names = [
        path.relative_to(directory).as_posix() for path in dict.fromkeys(itertools.chain(*files))
    ]
    return [
        f"https://huggingface.co/datasets/{repository}/resolve/main/{name}" for name in names
    ], splits


def read_stories(
    path: Path, errors: str = "strict", split_on: re.Pattern | None = None, headers: bool = False
) -> Iterator[str]:
    """The text of every story in a .txt, .jsonl or .parquet file; the first two may be compressed
    (.gz).

    split_on: in a .txt, what stands between stories, beside <|endoftext|>. errors: bytes of a .txt
    that are not UTF-8 are a ValueError ("strict"), or become U+FFFD ("replace"). headers: with the
    words, features, summary and sentence of a row as a header, if it has some.
    """
    ending = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if path.suffix == ".parquet":
        return parquet_stories(path, headers)
    if ending not in (".txt", ".jsonl"):
        raise UserError(
            f"{path}: unknown format; its name must end in .txt, .jsonl, .txt.gz, .jsonl.gz or"
            " .parquet"
        )
    if ending == ".jsonl":
        return json_stories(path, headers)
    texts = split_file(path, END_OF_TEXT, errors)
    if not split_on:
        return texts
    return (
        story for text in texts for story in split_on.split(text)[:: split_on.groups + 1]
    )  # without its groups


def split_file(path: Path, separator: str, errors: str = "strict") -> Iterator[str]:
    """The file's text, split at each separator; the last piece only if it is not blank."""
    rest = ""
    bar = tqdm(
        desc=f"reading {path.name}",
        total=path.stat().st_size,
        unit="B",
        unit_scale=True,
        disable=None,
    )
    with path.open("rb") as raw, bar:
        data = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        text = io.TextIOWrapper(data, encoding="utf-8-sig", errors=errors, newline="")
        try:
            while block := text.read(
                max(1 << 20, len(rest))
            ):  # doubles: otherwise a long line takes n² time
                *complete, rest = (rest + block).split(separator)
                yield from complete
                bar.update(raw.tell() - bar.n)
        except UnicodeDecodeError:
            raise UserError(
                f"{path}: not UTF-8 text, somewhere before byte {data.tell():,}; convert it"
            ) from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(
                f"{path}: broken gzip ({error}); download or compress it again"
            ) from None
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
                hint = (
                    'a line must be an object such as {"text": "A fox ran…", "words": ["fox"]}, or'
                    ' with "story"'
                )
                raise UserError(f"{path}: no story in line {number}; {hint}") from None
            yield story


def pyarrow_parquet():
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError("reading .parquet files needs pyarrow: pip install pyarrow") from None
    return parquet


def parquet_stories(path: Path, headers: bool) -> Iterator[str]:
    """Stories from the column text or story."""
    parquet = pyarrow_parquet()
    try:
        file = parquet.ParquetFile(path)
    except ValueError:  # pyarrow's
        raise UserError(f"{path}: broken parquet; download it again") from None
    names = set(file.schema_arrow.names)
    columns = [name for name in ("text", "story") if name in names]
    if not columns:
        raise UserError(
            f"{path}: no column text or story, only {', '.join(file.schema_arrow.names)}"
        )
    with tqdm(
        desc=f"reading {path.name}", total=file.metadata.num_rows, unit=" stories", disable=None
    ) as bar:
        for batch in file.iter_batches(
            columns=[columns[0], *(names & FIELDS.keys() if headers else ())]
        ):
            for row in batch.to_pylist():
                story = row[columns[0]] or ""
                if not isinstance(story, str):
                    raise UserError(f"{path}: the column {columns[0]} is not text")
                yield add_own_header(story, row) if headers else story
            bar.update(len(batch))
