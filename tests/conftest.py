"""Tests run from anywhere, on the scripts beside this folder, and never on a GPU by accident."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT.parent / "shared" / "data" / "tinystories-sample"
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def real_stories() -> list[str]:
    """358 real TinyStories, where the sample is at hand."""
    if not SAMPLE.exists():
        pytest.skip("needs ../shared/data/tinystories-sample")
    return [story.strip() for story in (SAMPLE / "valid.txt").read_text().split("<|endoftext|>") if story.strip()]
