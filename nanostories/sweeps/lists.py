"""
The lists of experiments.py: one for each table or figure of the paper (P: Eldan and Li,
arXiv:2305.07759) and of two reproductions (A: McGill, with the published models; B: IIIT, GPT-2
models trained from scratch).

At the small scale a list is a scaled-down version of its figure: smaller shapes, built-in stories,
minutes on two cores. At the real scale the same runs are longer, on real stories.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nanostories.files import PROMPTS

# The stories that the published models learned, numbered as in the file, in their tokens
PUBLISHED_STORIES = "tinystories-published"
# Arguments of prepare.py for corpora that are not known to it by name
REAL_STORIES = ("--input", "train.txt", "--val", "valid.txt")
PREPARED = {
    PUBLISHED_STORIES: ("tinystories", "--raw", "--vocab_size=50257"),
    "real": REAL_STORIES,
    "real-instruct": (*REAL_STORIES, "--headers"),
}
LONGER = 8  # times as many steps at the real scale as at the small one: about 0.7 of an epoch


@dataclass(frozen=True)
class Runs:
    """The runs or models of a list at one scale: runs that differ in a few settings and train on
    equally many tokens (with `budgets`, each trains once for each budget of FLOPs that suits its
    size); or existing models."""

    variants: Mapping[str, dict]  # {name: settings of train.py that differ from the scale's}
    steps: int = 0  # length of each run; 0: nothing is trained
    budgets: Sequence[float] = ()  # training FLOPs
    models: tuple[str, ...] = ()  # as in sample.py --model; beside the runs, if there are any
    prompts: Path | None = None  # beginnings in place of validation stories

    @property
    def trains(self) -> bool:
        return bool(self.steps or self.budgets)


@dataclass(frozen=True)
class Experiment:
    """The runs or models of a table or figure of the documents, and its measures."""

    shows: str  # which table or figure
    small: Runs
    published: Runs
    real: Runs | None = None  # None: those of the small scale, longer
    measures: tuple[str, ...] = ()  # names in nanostories/sweeps/measures.py
    # x-axes of its picture: settings or columns; none: a line for each run
    axes: tuple[str, ...] = ()
    picture: str = "panels"  # or law, neurons; "": a measure's own (grades.png, …) is enough
    curves: bool = False  # also draw the losses over tokens
    data: str = "tinystories"
    sample_flags: tuple[str, ...] = ()  # for sample.py
    own_prompts: bool = False  # each run continues stories of its own corpus, not of this one
    checkpoints: bool = False  # compare the kept checkpoints of runs, and not only the last

    def runs(self, scale: str) -> Runs:
        listed = getattr(self, scale)
        if listed:
            return listed
        budgets = tuple(LONGER * flops for flops in self.small.budgets)
        return replace(self.small, steps=LONGER * self.small.steps, budgets=budgets)


@dataclass(frozen=True)
class Scale:
    """The settings that the runs of all lists share."""

    config: str
    corpora: dict[str, str]  # {name in the lists: the corpus that stands for it at this scale}
    warmup: float  # share of the steps
    # Each run's is this, or 1 / width if that is lower (LOG.md); None: the config's
    highest_learning_rate: float | None
    min_steps: int  # within a budget; with fewer, the batch size matters more than the model size
    n: int  # completions of each prompt


SMALL = Scale(
    config="experiment.py",
    corpora={
        "tinystories": "builtin",
        PUBLISHED_STORIES: "builtin",
        "instruct": "builtin-instruct",
        "instruct-any": "builtin-instruct",  # also at the real scale: real stories lack summaries
        "instruct-ood": "builtin-instruct-ood",
    },
    warmup=0.05,
    highest_learning_rate=8e-3,
    min_steps=20,
    n=1,
)
REAL_CORPORA = SMALL.corpora | {
    "tinystories": "real",
    PUBLISHED_STORIES: "real",
    "instruct": "real-instruct",
}
SCALES = {
    "small": SMALL,
    "real": replace(SMALL, corpora=REAL_CORPORA, highest_learning_rate=1 / 32, n=2),
    "published": Scale(  # a step has 655,360 tokens, so 720 steps are one epoch of TinyStories
        config="experiment_published.py",
        corpora={"instruct-any": "instruct"},
        warmup=0.0,
        highest_learning_rate=None,
        min_steps=60,
        n=10,
    ),
}


def shapes(names: str, **others) -> dict[str, dict]:
    """Settings by name; a name is width-layers-heads."""
    found = {}
    for name in names.split():
        width, layers, heads = map(int, name.split("-"))
        found[name] = dict(n_embd=width, n_layer=layers, n_head=heads, **others)
    return found


def named(prefix: str, variants: Mapping[str, dict], **others) -> dict[str, dict]:
    return {f"{prefix}{name}": settings | others for name, settings in variants.items()}


def with_instruct(variants: dict[str, dict]) -> dict[str, dict]:
    """Each shape trained twice: on plain stories and on stories with headers."""
    return variants | named("instruct-", variants, data="instruct")


def both_kinds(variants: dict[str, dict]) -> dict[str, dict]:
    return named("gptneo-", variants) | named("gpt2-", variants, architecture="gpt2")


def dropouts(start: str, width: int) -> dict[str, dict]:
    rates = {f"{p:.1f}": dict(dropout=p, n_embd=width) for p in (0.0, 0.1, 0.2, 0.3)}
    return named("zero-", rates) | named("continued-", rates, start_from=start)


def compressors(*widths: int) -> dict[str, dict]:
    found = {}
    for width in widths:
        for kind in ("gpt2", "compressor"):
            found[f"{kind}-{width}"] = dict(architecture=kind, n_embd=width)
    return found


PUBLISHED = tuple(
    f"hf:roneneldan/TinyStories-{size}"
    for size in "1M 3M 8M 28M 33M 1Layer-21M 2Layers-33M".split()
)
GPT2 = tuple(f"hf:{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"))
SCALING_NAMES = " ".join(
    f"{w}-{depth}-16" for w in (64, 128, 256, 512, 768, 1024, 2048) for depth in (2, 4, 8, 12)
)
THREE_SMALL_RUNS = Runs(shapes("32-4-4 64-4-4 128-4-4"), 250)
TWO_SMALL_SHAPES = shapes("64-4-4 128-4-4")
TWO_SHAPES = shapes("256-8-8 512-8-8", architecture="gpt2")
OOD_VARIANTS = {"any": dict(data="instruct-any"), "never-both": {}}

EXPERIMENTS = {
    "shapes": Experiment(
        "B: loss and scores of eight GPT-2 shapes (width-layers-heads), over width, layers and"
        " heads",
        small=Runs(
            shapes(
                "32-4-4 32-6-4 64-4-2 64-4-4 64-4-8 64-6-4 128-4-4 128-6-4", architecture="gpt2"
            ),
            250,
        ),
        published=Runs(
            shapes(
                "128-8-4 128-12-4 256-8-2 256-8-4 256-8-8 256-12-4 512-8-4 512-12-4",
                architecture="gpt2",
            ),
            720,
            models=GPT2[:2],
        ),
        measures=("scores", "probes"),
        axes=("n_embd", "n_layer", "n_head"),
        curves=True,
    ),
    "paper_shapes": Experiment(
        "P, figure 4 and table 4: shapes by loss, scores, instructions and plot (64-12, 256-8 and"
        " 768-8 are the paper's; the others ours)",
        small=Runs(with_instruct(shapes("32-1-4 32-4-4 64-1-4 64-2-4 128-4-4")), 200),
        published=Runs(
            with_instruct(shapes("64-12-16 128-8-16 256-8-16 768-1-16 768-2-16 768-4-16 768-8-16")),
            7200,
        ),
        measures=("instruct", "scores"),
        axes=("n_embd", "n_layer"),
        own_prompts=True,
    ),
    "scaling": Experiment(
        "P, figures 6 and 23: the lowest loss, and the size that reaches it, by training FLOPs",
        small=Runs(
            shapes("16-2-2 32-2-2 32-4-4 64-2-4 64-4-4 128-2-8 128-4-8"),
            budgets=(2e11, 4e11, 8e11, 1.6e12, 3.2e12),
        ),
        published=Runs(shapes(SCALING_NAMES), budgets=(1e16, 3e16, 1e17, 3e17, 1e18)),
        picture="law",
    ),
    "heads": Experiment(
        "P: more heads do better. B: of 256-8-2, -4 and -8 they hardly do. P's is GPT-Neo, B's is"
        " GPT-2",
        small=Runs(both_kinds(shapes("64-4-1 64-4-2 64-4-4 64-4-8")), 250),
        published=Runs(both_kinds(shapes("256-8-2 256-8-4 256-8-8 256-8-16")), 720),
        measures=("scores", "probes"),
        axes=("n_head",),
    ),
    "baselines": Experiment(
        "A, figure 1: scores of models; bits per byte of the same stories; seconds a story",
        small=THREE_SMALL_RUNS,
        published=Runs({}, models=PUBLISHED + GPT2),
        measures=("bits_per_byte", "scores"),
        picture="",
        data=PUBLISHED_STORIES,
    ),
    "bits_per_byte": Experiment(
        "ours: bits per byte of any models on the same text, over parameters and training FLOPs",
        small=THREE_SMALL_RUNS,
        published=Runs({}, models=PUBLISHED + GPT2),
        measures=("bits_per_byte",),
        axes=("parameters", "training FLOPs"),
        data=PUBLISHED_STORIES,
    ),
    "prompts": Experiment(
        "P, A, B: facts, reasoning and context by model (prompts with known answers in place of"
        " theirs); scores of the completions of three beginnings",
        small=THREE_SMALL_RUNS,
        published=Runs({}, models=PUBLISHED + GPT2[:1]),
        measures=("beginnings", "probes"),
        data=PUBLISHED_STORIES,
    ),
    "dropout": Experiment(
        "A: scores by dropout, continued from trained weights, and from zero",
        small=Runs(dropouts("zero-0.0", 64), 250),
        published=Runs(dropouts(PUBLISHED[1], 128), 720),
        measures=("scores", "probes"),
        axes=("dropout",),
        data=PUBLISHED_STORIES,
    ),
    "from_zero": Experiment(
        "A, figure 6: losses of the 1M shape from zero, one epoch in small steps: 8 windows of 256"
        " tokens, about nine stories",
        small=Runs(shapes("64-4-4"), 2165),
        real=Runs(shapes("64-4-4"), 2722),
        published=Runs(
            shapes("64-8-16", batch_size=8, grad_accum_steps=1, block_size=256), 230_400
        ),
        curves=True,
    ),
    "contrast": Experiment(
        "B: plain and contrastive models of two widths",
        small=Runs(
            TWO_SMALL_SHAPES | named("contrast-", TWO_SMALL_SHAPES, contrast="published"), 250
        ),
        published=Runs(TWO_SHAPES | named("contrast-", TWO_SHAPES, contrast="published"), 2880),
        measures=("scores", "probes"),
        curves=True,
    ),
    "memory": Experiment(
        "B: MB of a training step by width and batch size, of GPT-2 and the compressor",
        small=Runs(compressors(64, 128, 256)),
        published=Runs(compressors(128, 256, 512)),
        measures=("memory",),
        axes=("n_embd",),
    ),
    "compressor": Experiment(
        "B: scores and loss curves of GPT-2 and of the compressor described there",
        small=Runs(compressors(64, 128), 200),
        published=Runs(compressors(128, 256, 512), 720),
        measures=("scores", "probes"),
        axes=("n_embd",),
        curves=True,
    ),
    "memorization": Experiment(
        "P and B: completions of random training stories, 40 and 50 % shown, beside the true rest,"
        " other completions and the training set",
        small=THREE_SMALL_RUNS,
        published=Runs({}, models=PUBLISHED),
        measures=("memorization",),
        picture="",
        data=PUBLISHED_STORIES,
    ),
    "instruct": Experiment(
        "P and B: how well models of different depth follow instructions, also with words that"
        " training did not have",
        small=Runs(
            shapes("64-1-4 64-2-4 64-4-4") | named("story-", shapes("64-4-4"), loss_on="story"),
            300,
        ),
        published=Runs(
            shapes("256-1-16 256-2-16 256-4-16 256-8-16")
            | named("story-", shapes("256-8-16"), loss_on="story"),
            7200,
        ),
        measures=("unseen", "scores"),
        picture="",
        data="instruct",
    ),
    "instruct_ood": Experiment(
        "P: words and summary asked for together, in training never together (never-both) or in any"
        " combination (any)",
        small=Runs(OOD_VARIANTS, 300),
        published=Runs(OOD_VARIANTS, 7200),
        measures=("instruct",),
        picture="",
        data="instruct-ood",
        sample_flags=("--ask", "words", "summary", "words,summary"),
    ),
    "over_training": Experiment(
        "P, figure 3: scores over training and over the validation loss",
        small=Runs(shapes("32-4-4 128-1-4 128-4-4", keep_checkpoints=5), 300),
        published=Runs(
            shapes("64-2-16 64-8-16 256-2-16 256-8-16 768-2-16 768-8-16", keep_checkpoints=10),
            7200,
            prompts=PROMPTS / "beginnings.txt",
        ),
        measures=("probes", "scores"),
        axes=("tokens", "validation loss"),
        checkpoints=True,
    ),
    "attention": Experiment(
        "P, A, B: the heads of a model: maps, roles, and whether distance or meaning explains their"
        " attention",
        small=Runs(shapes("128-4-8"), 300),
        published=Runs({}, models=PUBLISHED[2:3]),
        measures=("heads",),
        picture="",
        data=PUBLISHED_STORIES,
    ),
    "neurons": Experiment(
        "P and B: the tokens on which neurons fire, of the published 1M and of GPT-2-XL, too; kinds"
        " of words by layer, and by training step",
        small=Runs(shapes("128-4-4", keep_checkpoints=3), 300),
        published=Runs(
            shapes("64-8-16", keep_checkpoints=5), 7200, models=(PUBLISHED[0], GPT2[-1])
        ),
        measures=("neurons",),
        picture="neurons",
        checkpoints=True,
    ),
}
