"""
Makes the pictures of README and docs again: trains what they show, and photographs the pages.

$ python docs/pictures.py pictures        # everything that it trains lies in pictures/
$ python docs/pictures.py pictures demo   # only the pictures of this part

Half an hour on two idle cores, on built-in stories, seed 0. Needs requirements-dev.txt and
Chromium. The pictures of docs/results/ are those of their time, and are not made again.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "assets"
PROMPT = "In a low house by the church lived a nimble girl named {}. She had an old wagon. It had a"
PROMPT += " crack and one bent corner, but {}"


def run(command: str, *arguments: str) -> None:
    words = [*shlex.split(command), *arguments]
    print("$ python", shlex.join(words), flush=True)
    subprocess.run([sys.executable, str(ROOT / words[0]), *words[1:]], check=True)


def copy(source: Path, name: str) -> None:
    shutil.copyfile(source, ASSETS / name)


def photograph(page: Path, name: str, size: tuple[int, int], *steps: str) -> None:
    """steps: JavaScript that is run in the page, one after the other, each until it is true."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        # Waiting evaluates JavaScript, which the pages' own policy forbids.
        view = {"width": size[0], "height": size[1]}
        tab = browser.new_page(viewport=view, bypass_csp=True)
        tab.goto(page.resolve().as_uri())
        for step in steps:
            tab.wait_for_function(step)
        tab.screenshot(path=ASSETS / name)
        browser.close()


# ---- The parts ----
def demo(directory: Path) -> None:
    """A run, a smaller one beside it, and every command on both."""
    where = f"--out_dir={directory} --data_dir={directory / 'data'}"
    run(f"train.py configs/demo.py {where}")
    small = "--name=small --n_embd=64 --n_layer=2 --n_head=4 --max_steps=500"
    run(f"train.py configs/demo.py {where} {small}")
    for name in ("demo", "small"):
        for split in ("val", "train"):
            run(f"sample.py --model {directory / name} --eval 50 --n 5 --split {split}")
    run(f"grade.py {directory}")
    run(f"probe.py {directory}")
    run(f"probe.py {directory} --pairs")
    run(f"rouge.py {directory / 'demo'} {directory / 'small'}")
    run(f"interpret.py {directory / 'demo'}")
    run(f"report.py {directory}")
    photograph(directory / "report.html", "report.png", (1150, 1180))
    photograph(directory / "probe.html", "probe.png", (1100, 640))
    photograph(directory / "demo" / "neurons.html", "neurons.png", (1250, 1000))
    copy(directory / "demo" / "interpret.png", "attention.png")


def patching(directory: Path) -> None:
    run(
        f"interpret.py {directory / 'demo'} --patch",
        PROMPT.format("Mia", "Mia"),
        PROMPT.format("Anna", "Anna"),
    )
    copy(directory / "demo" / "patching.png", "patching.png")


def export(directory: Path) -> None:
    run(f"export.py {directory / 'demo'}")
    lessons = "[...document.querySelectorAll('#lessons button')]"
    photograph(
        directory / "demo" / "story.html",
        "export.png",
        (1400, 940),
        f"{lessons}.length == 5",
        f"{lessons}[2].click() || true",  # Looking back
        "document.querySelector('#panel [aria-pressed=true]')",
    )


def instruct(directory: Path) -> None:
    name = "builtin_instruct"
    where = f"--out_dir={directory / 'instruct'} --data_dir={directory / 'data'}"
    run(f"train.py configs/{name}.py {where} --max_minutes=0 --max_steps=2000")
    run(f"sample.py --model {directory / 'instruct' / name} --eval 200 --n 1")
    run(f"instruct.py {directory / 'instruct' / name}")
    copy(directory / "instruct" / "instruct.png", "instruct.png")


def baselines(directory: Path) -> None:
    places = f"--out_dir {directory / 'lists'} --data_dir {directory / 'data'}"
    run(f"experiments.py baselines {places}")
    copy(directory / "lists" / "baselines" / "experiment.png", "baselines.png")


def memorization(directory: Path) -> None:
    """A model that has read 200 stories again and again, beside one that has read many once."""
    few = directory / "few.txt"
    end = "<|endoftext|>"
    few.write_text(end.join(builtin_stories(directory / "data" / "builtin", 200)))
    where = f"--data_dir={directory / 'data'}"
    run(f"prepare.py --input {few} --name few --vocab_size 2000 {where}")
    size = "--n_layer=2 --n_head=4 --n_embd=128 --batch_size=4 --max_steps=1500"
    places = []
    for name, data in (("honest", "builtin"), ("overfit", "few")):
        place = directory / "memorization" / name
        run(
            f"train.py configs/demo.py {size} --name={name} --data={data}",
            where,
            f"--out_dir={place.parent}",
        )
        for split in ("val", "train"):
            flags = f"--checkpoint last --cut 0.4 --split {split}"
            run(f"sample.py --model {place} --eval 20 --n 5 {flags}")
        places.append(str(place))
    run("rouge.py", *places)
    copy(directory / "memorization" / "rouge.png", "rouge.png")


def builtin_stories(data: Path, n: int) -> list[str]:
    from nanostories.corpus.token_files import load_stories

    _, stories = load_stories(data, "train")
    return [story for story, _ in zip(stories, range(n))]


PARTS = (demo, patching, export, instruct, baselines, memorization)


def main() -> None:
    directory = Path(sys.argv[1])
    chosen = sys.argv[2:]
    for part in PARTS:
        if not chosen or part.__name__ in chosen:
            part(directory)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
