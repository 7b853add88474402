"""
The demo as a new user runs it, building the corpus and compiling included: how long it takes, and how well the model
tells stories. Each round has its own seed. No peer: the ratios are to its promises, 300 s, a loss of 0.45, names 85%.

"Names again": where a name that was mentioned before occurs again in a story, how often it is the likeliest token.

$ python bench.py demo
"""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from benches.measure import medians_of_rounds
from checkpoints.checkpoint import from_checkpoint, load_checkpoint
from corpus.builtin_stories import NAMES
from corpus.token_files import load_meta_and_tokens
from corpus.tokenizer import Tokenizer
from training.data_order import TokenStream, story_windows
from training.run_directory import read_log

ROOT = Path(__file__).parent.parent
ROUNDS = 1
PROMISES = dict(seconds=300, loss=0.45, names=0.85)


def train_demo(directory: str, seed: int) -> dict[str, float]:
    command = [sys.executable, ROOT / "train.py", f"--out_dir={directory}", f"--data_dir={directory}", f"--seed={seed}"]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=2)
    seconds, run = time.perf_counter() - start, Path(directory, "demo")
    last = read_log(run / "log.csv")[-1]
    return {
        "seconds in all": seconds,
        "tokens/s at the end": float(last["tokens_per_s"]),
        "tokens": int(last["tokens"]),
        "validation loss": float(last["val_loss"]),
        "names again": names_again(run, Path(directory, "builtin")),
    }


@torch.no_grad()
def names_again(run: Path, corpus: Path, n_tokens: int = 40_000) -> float:
    """Over the windows of the first n_tokens of the validation split, each token once."""
    model, (meta, tokens) = from_checkpoint(load_checkpoint(run)), load_meta_and_tokens(corpus, "val")
    tokenizer, tokens, length = Tokenizer(meta["gpt2_ids"]), tokens[:n_tokens], model.config.block_size
    names = {ids[0] for ids in (tokenizer.encode(f" {name}") for name in NAMES) if len(ids) == 1}
    windows = story_windows(tokens, length, tokenizer.end_of_text)
    stream = TokenStream(tokens, length, torch.device("cpu"))
    right = places = 0
    for window, n_new in zip(windows, np.diff(windows, append=windows[-1] + length)):
        inputs, targets = stream.read(np.array([window]))
        likeliest, inputs, targets = (x[0].tolist() for x in (model(inputs)[0].argmax(-1), inputs, targets))
        story = 0  # where the current one begins
        for i in range(n_new):
            story = i if inputs[i] == tokenizer.end_of_text else story
            if targets[i] in names and targets[i] in inputs[story : i + 1]:
                places += 1
                right += likeliest[i] == targets[i]
    return right / places


def bench(rounds: int) -> tuple[dict, dict]:
    figures = medians_of_rounds(train_demo, rounds)
    ratios = dict(
        time=PROMISES["seconds"] / figures["seconds in all"],
        loss=PROMISES["loss"] / figures["validation loss"],
        names=figures["names again"] / PROMISES["names"],
    )
    return ratios, figures
