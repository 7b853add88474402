"""benches/grade.py runs, at a size that takes a second."""

import os

from benches import grade


def test_the_bench_of_grade_py_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(os.getcwd())  # and back again, behind it
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    for name, value in dict(RUNS=2, PROMPTS=4, COMPLETIONS=2).items():
        monkeypatch.setattr(grade, name, value)
    figures = grade.grade_at_once(str(tmp_path))
    assert figures.pop("gradings") == 2 * 4 * 2 * 2 and len(figures) == 5
    assert all(value >= 0 for value in figures.values())
    assert (tmp_path / "out" / "grades.csv").exists()
