"""Tests run from anywhere, on the scripts beside this folder."""

import csv
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

pytest_plugins = ["sample_fixtures", "grade_fixtures"]
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
# One thread: the threads of tests that run side by side would wait for each other, and a story told
# on a busy machine would change their number.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"  # a thread that waits lets others run
# Whatever the developer has set: servers of tests are on this machine, and judges get no real key.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
for role in ("OPENAI", "JUDGE"):
    for name in ("API_KEY", "BASE_URL"):
        os.environ.pop(f"{role}_{name}", None)
# What a shell runs in the background is deaf to Ctrl-C from the start, and so are the processes
# that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seed():
    """A test that draws without a seed of its own draws the same alone and after others."""
    import torch  # not before OMP_NUM_THREADS is set

    torch.manual_seed(0)


@pytest.fixture(scope="module", params=[257, 1000, 50257, "learned"])
def any_tokenizer(request):
    """GPT-2's vocabulary, whole and cut; and one that is learned from text in several scripts."""
    from tokenizer_texts import SCRIPTS, TEXT, count_tokens

    from nanostories.corpus.tokenizer import cut, learn_bpe

    if request.param == "learned":
        return learn_bpe([TEXT, *SCRIPTS], 500)
    return cut(count_tokens(TEXT), request.param)


STATEFUL = dict(dropout=0.1, optimizer="muon", bigram_init=0.1)  # what an exact resume could forget


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """data/tiny: a few hundred little stories."""
    from prepare import Options, prepare

    directory = tmp_path_factory.mktemp("data")
    texts = []
    names = ("Tom", "Mia", "Ben", "Sue")
    things = ("ball", "cat", "kite", "drum", "hat")
    for i, name, thing in itertools.product(range(25), names, things):
        texts.append(f"{name} had a {thing}. It was number {i}.")
    val = [*texts[::-10], "A new one."]
    prepare(directory / "tiny", ["made for the tests"], texts, val, Options(vocab_size=300))
    return directory


@pytest.fixture(scope="session")
def instruct_data_dir(tmp_path_factory):
    """data/builtin-instruct, data/builtin-instruct-ood, and data/builtin"""
    from story_files import run_prepare  # which imports numpy: not before OMP_NUM_THREADS is set

    directory = tmp_path_factory.mktemp("data")
    for corpus in ("builtin", "builtin-instruct", "builtin-instruct-ood"):
        flags = ("--stories=700", "--vocab_size=1000", "--seed=2", f"--data_dir={directory}")
        run_prepare(corpus, *flags)
    return directory


def settings(data_dir: Path, directory: Path) -> dict:
    """Of a run that takes a second and is written to out/run in `directory`."""
    return dict(
        name="run",
        out_dir=str(directory / "out"),
        data="tiny",
        data_dir=str(data_dir),
        device="cpu",
        dtype="float32",
        compile=False,
        block_size=16,
        n_layer=2,
        n_head=2,
        n_embd=16,
        window_size=8,
        batch_size=4,
        grad_accum_steps=2,
        max_steps=20,
        learning_rate=1e-2,
        log_interval=5,
        eval_interval=10,
        eval_tokens=400,
    )


@pytest.fixture
def config(data_dir, tmp_path) -> dict:
    return settings(data_dir, tmp_path)


@pytest.fixture
def quick(monkeypatch):
    """Runs of train() leave out what takes most of the time of so small ones, until
    quick.undo()."""
    import train  # not before OMP_NUM_THREADS is set

    monkeypatch.setattr(train, "plot_run", lambda *_: None)
    return monkeypatch


def run_of(config: dict, resume: bool = False, **changes) -> Path:
    """Such a run, trained to its end in this process."""
    # not before OMP_NUM_THREADS is set
    from nanostories.training.config import TrainConfig
    from train import train

    run, finished = train(TrainConfig(**config | changes), resume)
    assert finished
    return run


def arguments(config: dict, *others: str) -> list[str]:
    """The command line of such a run."""
    path = Path(config["out_dir"]).parent / "empty.py"
    path.write_text("")
    return [str(path), *(f"--{key}={value}" for key, value in config.items()), *others]


def log_of(run: Path) -> list[dict]:
    with (run / "log.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def without_speed(rows: list[dict]) -> list[dict]:
    speeds = {"done", "tokens_per_s", "mfu", "seconds"}
    return [{key: row[key] for key in row if key not in speeds} for row in rows]


def weights(run: Path, name: str = "ckpt.pt") -> dict:
    from nanostories.checkpoints.checkpoint import load_checkpoint

    return load_checkpoint(run / name)["model"]


def assert_same_weights(run: Path, reference: Path, name: str = "ckpt.pt"):
    """Bit by bit."""
    import torch  # not before OMP_NUM_THREADS is set

    torch.testing.assert_close(weights(run, name), weights(reference, name), atol=0, rtol=0)


def assert_same_run(run: Path, reference: Path):
    """Bit by bit, the speeds aside."""
    for name in ("ckpt.pt", "best.pt"):
        assert_same_weights(run, reference, name)
    assert without_speed(log_of(run)) == without_speed(log_of(reference))


def numbers_of(run: Path) -> list[dict[str, float]]:
    rows = []
    for row in without_speed(log_of(run)):
        rows.append({key: float(value) for key, value in row.items() if value})
    return rows


def assert_same_curve(run: Path, reference: Path):
    """To the rounding of sums that are taken in another order."""
    import torch  # not before OMP_NUM_THREADS is set

    for row, other in zip(numbers_of(run), numbers_of(reference), strict=True):
        assert row == pytest.approx(other, rel=2e-3, abs=2e-5)
    # AdamW makes a step of learning_rate = 1e-2 of the smallest gradient: this is half of one, in
    # twenty.
    torch.testing.assert_close(weights(run), weights(reference), atol=5e-3, rtol=2e-3)


@pytest.fixture
def command_line(monkeypatch, capsys):
    """command_line(script, directory) calls the script's main() there, with words or with one line
    of them -> (exit code or message, what it printed). Every message must be one line."""

    def of(script, directory: Path):
        def call(*args):
            words = map(str, args)
            if len(args) == 1:
                words = shlex.split(str(args[0]))
            monkeypatch.chdir(directory)
            monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *words])
            try:
                script.main()
            except SystemExit as end:
                printed = capsys.readouterr()
                said = printed.err if end.code == 2 else end.code  # argparse prints its own
                if isinstance(said, str):
                    said = said.strip()  # that of Ctrl-C begins on a new line
                    assert "\n" not in said and "\\n" not in said
                return said, printed
            return 0, capsys.readouterr()

        return call

    return of


@pytest.fixture
def two_threads():
    """Kernels and PyTorch share the work among two threads, whatever the others run with."""
    import torch  # not before OMP_NUM_THREADS is set

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# ---- Pages, in a browser ----
@pytest.fixture(scope="session")
def chromium():
    """A browser that stays open, offline, and keeps all that its console says
    (tests/browser_driver.py). NANOSTORIES_REQUIRE=chromium: without one, tests fail."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if not program and os.environ.get("NANOSTORIES_REQUIRE") == "chromium":
        pytest.fail("no Chromium on this machine")
    if not program:
        pytest.skip("no Chromium on this machine")
    from browser_driver import Browser

    browser = Browser(program)
    yield browser
    browser.close()


def page_data(page: bytes | Path) -> dict:
    """What a page of pages/ gives its script."""
    text = (page.read_bytes() if isinstance(page, Path) else page).decode()
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1]
    )
