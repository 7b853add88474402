"""Whether what a header asks for is in the story."""

import pytest

import instruct
from nanostories.corpus.word_forms import uses_word
from nanostories.generation import prompts as prompts_module
from nanostories.generation.prompts import Prompt, evaluation_prompts, unseen_word_prompts
from nanostories.generation.samples_file import write_rows
from nanostories.results import load, to_text

THERE = """run: He RAN.|run: They are running|child: children|happy: the happiest of all|red: redder|nice: nicer
carry: carried|teach: he taught|admit: She admitted it|leaf: leaves|x-ray: an X-ray!|ice cream: two ice creams
hat: that hats|be: she was|good: the best|knife: knives|box: boxes"""  # noqa: E501
THERE += "\nété: L'Été vint|дом: Вот дом.|घर: वह घर|狐: 小狐狸|고양이: 고양이가 있다"
NOT_THERE = (
    "run: a runt|hat: that|be: bee|art: party|ice cream: ice cold cream|кот: который|घर: घरा|fée:"
    " fées"
)


@pytest.mark.parametrize("texts, there", [(THERE.replace("\n", "|"), True), (NOT_THERE, False)])
def test_words_are_found_however_inflected(texts, there):
    for word, text in (row.split(": ") for row in texts.split("|")):
        assert uses_word(text, word) == there, text


def samples(path, prompts, completions, **facts):
    """A set as sample.py writes it."""
    rows = []
    for i, (prompt, texts) in enumerate(zip(prompts, completions)):
        for j, text in enumerate(texts):
            row = dict(prompt_index=i, sample_index=j, completion=text)
            rows.append(row | prompt.row() | facts)
    write_rows(path, rows)


@pytest.fixture
def prompts(instruct_data_dir):
    return evaluation_prompts(instruct_data_dir / "builtin-instruct", 150, 0.5)


def measured(path) -> dict[str, dict]:
    """Rows by measure; `share` without its interval."""
    ((name, rows),) = instruct.stories_under_headers(path).items()
    found = {}
    for row in instruct.measure(name, rows):
        found[row["measure"]] = row | {"share": row["share"][0]}
    return found


def test_true_stories_follow_and_stories_for_others_do_not(prompts, tmp_path):
    true = [[prompt.reference] for prompt in prompts]
    samples(tmp_path / "true" / "samples/eval.jsonl", prompts, true)
    samples(tmp_path / "shifted" / "samples/eval.jsonl", prompts, true[1:] + true[:1])
    follows = measured(tmp_path / "true")
    shifted = measured(tmp_path / "shifted")
    assert follows.keys() == shifted.keys() and len(follows) == 12
    for name, row in follows.items():
        assert row["true stories"] == row["share"] == shifted[name]["true stories"]
        if not name.endswith("not asked for"):
            assert row["share"] >= 0.95
            if "dialogue" not in name:
                assert max(row["other prompts"], shifted[name]["share"]) < 0.35


def test_a_prompt_counts_once_and_silence_fails(prompts, tmp_path):
    """Half of the completions of each prompt are true, the others are empty."""
    samples(tmp_path / "samples/eval.jsonl", prompts, ([p.reference, ""] for p in prompts))
    half = measured(tmp_path)["words: all"]
    assert half["share"] == 0.5 and half["true stories"] == 1
    samples(tmp_path / "samples/eval.jsonl", prompts, ([""] for p in prompts))
    silent = measured(tmp_path)
    assert silent["words: all"]["prompts"] == half["prompts"]
    assert silent["words: all"]["share"] == silent["dialogue"]["share"] == 0
    # chance: all of some 80 summaries fit alike
    assert 0 < silent["summary: nearest"]["share"] < 1 / 70


def test_what_no_rule_can_tell_is_left_out(tmp_path):
    """A bad ending of another writer; a model's own answer to a prompt of the user's."""
    bad = Prompt("Features: BadEnding\nStory:", "\n\nThen the moon fell down.")
    prompts = [bad, Prompt("Words: a\nStory:")]
    samples(tmp_path / "samples/real.jsonl", prompts, [["It was sad."], ["A dog."]])
    found = measured(tmp_path)
    assert found.keys() == {"words: all", "words: each"}
    assert found["words: all"]["true stories"] is None


def test_command_line(tmp_path, command_line):
    instruct_py = command_line(instruct, tmp_path)
    for name in ("a", "b/warm", "c/best_of-8"):
        path = tmp_path / "out" / name / "samples/eval.jsonl"
        samples(path, [Prompt("Words: a\nStory:")], [["A dog."]])
    both = {"a, eval", "b/warm, eval"}
    best = {"c/best_of-8, eval"}
    for names, rows in {"out/a out/b": both, "out/c": best, "out": both | best}.items():
        printed = instruct_py(names)[1].out
        result = load(tmp_path / "out" / "instruct.json")
        assert to_text(result) in printed
        assert {row["run"] for row in result.tables[0].rows} == rows
    assert "a/samples/eval.jsonl" in result.sources
    assert (tmp_path / "out" / "instruct.png").exists()
    samples(path, [Prompt("no header")], [[""]])
    assert "out/c" in instruct_py("out/c")[0]


# ---- Unseen words ----
def test_words_that_no_training_story_has_are_measured_against_stories_for_other_prompts(
    instruct_data_dir, tmp_path, monkeypatch
):
    """Built-in stories tell of cakes, hiding and little animals."""
    path = tmp_path / "words.txt"
    path.write_text("n: cake zeppelin\n  quokka\n\nv: hide yodel zap\n\na: little zany zebraic")
    monkeypatch.setattr(prompts_module, "UNSEEN_WORDS", path)
    directory = instruct_data_dir / "builtin-instruct"
    prompts = unseen_word_prompts(directory, 2, seed=0)
    asked = [prompt.row()["instruction"]["words"] for prompt in prompts]
    kinds = [set(words) for words in zip(*asked)]
    assert kinds == [{"quokka", "zeppelin"}, {"yodel", "zap"}, {"zany", "zebraic"}]
    assert unseen_word_prompts(directory, 3, seed=0) == prompts  # there are words for two
    path.write_text("n: cake\n\nv: yodel\n\na: zany")
    with pytest.raises(ValueError, match=f"{directory.name}: .* all words"):
        unseen_word_prompts(directory, 1, seed=0)
    told = [[f"The {noun} {verb}s."] for noun, verb, _ in asked]
    samples(tmp_path / "samples/unseen.jsonl", prompts, told, split="unseen")
    found = measured(tmp_path)
    assert found.keys() == {"unseen words: all", "unseen words: each"}
    each = found["unseen words: each"]
    assert each["share"] == pytest.approx(2 / 3)
    assert each["other prompts"] == 0 and each["true stories"] is None
    assert found["unseen words: all"]["share"] == 0
