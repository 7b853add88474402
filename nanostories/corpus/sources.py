"""
The known corpora, and the stories of a file in any format that we read, one at a time, not yet
cleaned.

>>> next(read_files([Path("mine.jsonl.gz")]))
'Once upon a time…'
"""

import codecs
import csv
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nanostories.cli import UserError
from nanostories.corpus.instruct_headers import FIELDS, add_header_of_row
from nanostories.corpus.tokenizer import END_OF_TEXT
from nanostories.hub import from_hub

STORIES = "roneneldan/TinyStories"  # by an author of arXiv:2305.07759
INSTRUCT = (
    "roneneldan/TinyStoriesInstruct",
    "TinyStories-Instruct-train.txt",
    "TinyStories-Instruct-valid.txt",
)
# corpus -> its data set on the hub, and there the files of its training and of its validation
# stories
DOWNLOADS = {
    "tinystories": (STORIES, "TinyStories-train.txt", "TinyStories-valid.txt"),
    "tinystories-v2": (STORIES, "TinyStoriesV2-GPT4-train.txt", "TinyStoriesV2-GPT4-valid.txt"),
    "tinystories-clean": ("karpathy/tinystories-gpt4-clean", "*.parquet", "*.parquet"),
    # arXiv:2504.09184
    "simplestories": (
        "SimpleStories/SimpleStories",
        "data/train-*.parquet",
        "data/test-*.parquet",
    ),
    "instruct": INSTRUCT,
    "instruct-ood": INSTRUCT,
}
ENDINGS = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet")
CONVERT = (
    "convert it, as in iconv -f CP1252 -t UTF-8 OLD.txt > NEW.txt (CP1250 for Czech or Polish,"
    " CP1251 for Russian, CP1253 for Greek, CP1254 for Turkish)"
)
COLUMNS = ("text", "story")  # in which stories are looked for
BUILTIN = ("builtin", "builtin-instruct", "builtin-instruct-ood")
CORPORA = (*DOWNLOADS, *BUILTIN)
# What meta.json says about the headers above the stories (nanostories/corpus/instruct_headers.py),
# and for which corpora.
ANY = "any fields together"
OOD = "in train never words and summary together"
HEADERS = {
    "instruct": ANY,
    "instruct-ood": OOD,
    "builtin-instruct": ANY,
    "builtin-instruct-ood": OOD,
}


def download(corpus: str) -> tuple[list[str], Iterator[str], Iterator[str]]:
    """(the addresses of its files, training stories, validation stories) of a corpus of
    DOWNLOADS."""
    repository, train_pattern, val_pattern = DOWNLOADS[corpus]
    if train_pattern.endswith(".parquet"):
        pyarrow_parquet()  # before the download, which is large
    directory = from_hub(repository, [train_pattern, val_pattern], kind="dataset")
    train_files = sorted(directory.glob(train_pattern))
    val_files = sorted(directory.glob(val_pattern))
    train = read_files(train_files, errors="replace")
    val = read_files(val_files, errors="replace")
    if corpus == "tinystories-clean":
        # Both are in one file; its card says where. The first 10,000 are for a test.
        train = itertools.islice(train, 20_000, None)
        val = itertools.islice(val, 10_000, 20_000)
    addresses = []
    for path in dict.fromkeys([*train_files, *val_files]):
        name = path.relative_to(directory).as_posix()
        addresses.append(f"https://huggingface.co/datasets/{repository}/resolve/main/{name}")
    return addresses, train, val


# ---- Files ----
def ending_of(path: Path) -> str:
    """.csv of tales.csv, of tales.csv.gz and of TALES.CSV"""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def files_in(paths: Iterable[Path]) -> list[Path]:
    """Each folder is replaced by the files below it that we can read. UserError if it has none."""
    files = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        found = []
        for file in sorted(path.rglob("*")):
            is_hidden = file.name.startswith(".")  # such as a Mac's ._tales.txt
            if ending_of(file) in ENDINGS and file.is_file() and not is_hidden:
                found.append(file)
        if not found:
            raise UserError(f"{path}: no file in it ends in {', '.join(ENDINGS)}")
        files += found
    return files


def read_files(
    paths: Iterable[Path],
    errors: str = "strict",
    split_on: re.Pattern | None = None,
    headers: bool = False,
    columns: Sequence[str] = COLUMNS,
) -> Iterator[str]:
    """The text of every story in files that end in ENDINGS, perhaps with .gz.

    split_on: in a .txt, what stands between stories, beside <|endoftext|>. errors: bytes of a .txt
    that are not UTF-8 are a UserError ("strict"), or become U+FFFD ("replace"). headers: with the
    words, features, summary and sentence of a row as a header, if it has some. columns: names of
    the stories' column; of those that a row has, the first counts.
    """
    for path in paths:
        ending = ending_of(path)
        if ending == ".txt":
            yield from text_stories(path, errors, split_on)
            continue
        if ending == ".jsonl":
            rows = json_rows(path)
        elif ending == ".json":
            rows = json_array(path)
        elif ending in (".csv", ".tsv"):
            rows = csv_rows(path, ending)
        elif ending == ".parquet":
            rows = parquet_rows(path, columns)
        else:
            raise UserError(f"{path}: unknown format; its name must end in {', '.join(ENDINGS)}")
        yield from stories_of_rows(path, rows, headers, columns)


def text_stories(path: Path, errors: str, split_on: re.Pattern | None) -> Iterator[str]:
    for text in split_file(path, END_OF_TEXT, errors):
        if split_on:
            # A pattern with \n suits files of Windows, too.
            text = text.replace("\r\n", "\n")
            # What the groups of the pattern matched stands between the stories.
            pieces = split_on.split(text)[:: split_on.groups + 1]
            yield from (piece for piece in pieces if piece.strip())
        else:
            yield text


def split_file(path: Path, separator: str, errors: str = "strict") -> Iterator[str]:
    """The file's text, split at each separator; the last piece only if it is not blank."""
    open_file = gzip.open if path.suffix.lower() == ".gz" else open
    rest = ""
    try:
        with open_file(path, "rb") as file:
            is_utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding = "utf-16" if is_utf16 else "utf-8-sig"
        with open_file(path, "rt", encoding=encoding, errors=errors, newline="") as file:
            # Blocks grow with the rest: otherwise a long line takes n² time.
            while block := file.read(max(1 << 20, len(rest))):
                *complete, rest = (rest + block).split(separator)
                yield from complete
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text, nor UTF-16 with its mark; {CONVERT}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        remedy = "download or compress it again"
        raise UserError(f"{path}: broken gzip ({error}); {remedy}") from None
    if rest.strip():
        yield rest


def json_rows(path: Path) -> Iterator[dict]:
    for number, line in enumerate(split_file(path, "\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UserError(f"{path}: line {number} is not JSON ({error})") from None
            yield row


def json_array(path: Path) -> list[dict]:
    """The items of the one array in the file, as in TinyStories_all_data"""
    try:
        items = json.loads("\n".join(split_file(path, "\n")))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); one object a line is .jsonl") from None
    if not isinstance(items, list):
        raise UserError(f'{path}: not an array of objects, such as [{{"text": "A fox ran…"}}]')
    return items


def csv_rows(path: Path, ending: str) -> Iterator[dict]:
    """Cells by the names in the first line, separated by commas, semicolons or tabs. UserError if a
    row has more cells, as a comma of its story may have cut it."""
    # Lines end where the file says, also inside quotes.
    lines = (line + "\n" for line in split_file(path, "\n"))
    names = next(lines, "")
    delimiter = max(",;\t", key=names.count)
    if ending == ".tsv":  # perhaps of one column
        delimiter = "\t"
    rows = csv.DictReader(itertools.chain([names], lines), delimiter=delimiter)
    try:
        for number, row in enumerate(rows, 1):
            if any(row.get(None, [])):
                problem = f"row {number} has more cells than the first line"
                raise UserError(f"{path}: {problem}; cells that contain {delimiter!r} need quotes")
            yield row
    except csv.Error as error:  # such as a cell of more than 131,072 characters
        raise UserError(f"{path}: not CSV that can be read ({error})") from None


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[dict]:
    """With those of its columns that we know, and these."""
    parquet = pyarrow_parquet()
    try:
        file = parquet.ParquetFile(path)
        names = set(file.schema_arrow.names)
        read = {*FIELDS, *columns} & names
        if not names & set(columns):
            read = names  # an error will name them
        for batch in file.iter_batches(columns=sorted(read)):
            yield from batch.to_pylist()
    except (ValueError, OSError) as error:  # pyarrow's
        raise UserError(f"{path}: broken parquet ({error}); download it again") from None


def pyarrow_parquet():
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError("reading .parquet files needs pyarrow: pip install pyarrow") from None
    return parquet


def stories_of_rows(
    path: Path, rows: Iterable[dict], headers: bool, columns: Sequence[str]
) -> Iterator[str]:
    for number, row in enumerate(rows, 1):
        there = [name for name in row if name] if isinstance(row, dict) else []
        name = next((name for name in columns if name in there), None)
        if name is None or not isinstance(row[name], str | None):
            raise UserError(
                f"{path}: no story under {' or '.join(columns)}, as a text, in row {number}, which"
                f" has {there}: --column takes the right name, or one for each kind of file"
            )
        story = row[name] or ""
        if headers:
            story = add_header_of_row(story, row)
        # JSON may have half a character, which no file can hold.
        yield story.encode(errors="replace").decode()
