"""
Makes the pictures of README and docs again: trains what they show, and photographs the pages.

$ python docs/pictures.py pictures        # everything that it trains lies in pictures/
# only this part's pictures; patching and export show the run of the part demo, which goes before
$ python docs/pictures.py pictures demo

Half an hour on two idle cores, on built-in stories, seed 0. Needs requirements-dev.txt and
Chromium. The pictures of docs/results/ are those of their time, and are not made again.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "assets"
PROMPT = "In a low house by the church lived a nimble girl named {}. She had an old wagon. It had a"
PROMPT += " crack and one bent corner, but {}"
LESSONS = "[...document.querySelectorAll('#lessons button')]"


def run(command: str, *arguments: str) -> None:
    words = [*shlex.split(command), *arguments]
    print("$ python", shlex.join(words), flush=True)
    subprocess.run([sys.executable, str(ROOT / words[0]), *words[1:]], check=True)


def copy(source: Path, name: str) -> None:
    shutil.copyfile(source, ASSETS / name)


def photograph(page: Path, name: str, width: int, height: int, *steps: str) -> None:
    """steps: JavaScript that is run in the page, one after the other, each until it is true."""
    with sync_playwright() as playwright:
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        # Waiting evaluates JavaScript, which the pages' own policy forbids.
        view = {"width": width, "height": height}
        tab = browser.new_page(viewport=view, bypass_csp=True)
        tab.goto(page.resolve().as_uri())
        for step in steps:
            tab.wait_for_function(step)
        tab.screenshot(path=ASSETS / name)
        browser.close()


# ---- The parts ----
def demo(out: Path, data: Path) -> None:
    """A run, a smaller one beside it, and every command on both."""
    where = f"--out_dir={out} --data_dir={data}"
    run(f"train.py configs/demo.py {where}")
    small = "--name=small --n_embd=64 --n_layer=2 --n_head=4 --max_steps=500"
    run(f"train.py configs/demo.py {where} {small}")
    for name in ("demo", "small"):
        for split in ("val", "train"):
            run(f"sample.py --model {out / name} --eval 50 --n 5 --split {split}")
    run(f"grade.py {out}")
    run(f"probe.py {out}")
    run(f"probe.py {out} --pairs")
    run(f"rouge.py {out / 'demo'} {out / 'small'}")
    run(f"interpret.py {out / 'demo'}")
    run(f"report.py {out}")
    photograph(out / "report.html", "report.png", 1150, 1180)
    photograph(out / "probe.html", "probe.png", 1100, 640)
    photograph(out / "demo" / "neurons.html", "neurons.png", 1250, 1000)


def patching(out: Path, data: Path) -> None:
    prompts = [PROMPT.format(name, name) for name in ("Mia", "Anna")]
    run(f"interpret.py {out / 'demo'} --patch", *prompts)
    copy(out / "demo" / "patching.png", "patching.png")


def export(out: Path, data: Path) -> None:
    run(f"export.py {out / 'demo'}")
    lesson = f"{LESSONS}.length == 5 && ({LESSONS}[2].click() || true)"  # Looking back
    shown = "document.querySelector('#panel [aria-pressed=true]')"
    photograph(out / "demo" / "story.html", "export.png", 1400, 940, lesson, shown)


def instruct(out: Path, data: Path) -> None:
    place = out / "instruct" / "builtin_instruct"
    where = f"--out_dir={place.parent} --data_dir={data}"
    run(f"train.py configs/builtin_instruct.py {where} --max_minutes=0 --max_steps=2000")
    run(f"sample.py --model {place} --eval 200 --n 1")
    run(f"instruct.py {place}")
    copy(place.parent / "instruct.png", "instruct.png")


def baselines(out: Path, data: Path) -> None:
    run(f"experiments.py baselines --out_dir {out / 'lists'} --data_dir {data}")
    copy(out / "lists" / "baselines" / "grades.png", "baselines.png")


def memorization(out: Path, data: Path) -> None:
    """A model that has read 200 stories again and again, beside one that has read many once."""
    run(f"prepare.py builtin --stories=200 --name=few --vocab_size=2000 --data_dir={data}")
    size = "--n_layer=2 --n_head=4 --n_embd=128 --batch_size=4 --max_steps=1500"
    where = f"--out_dir={out / 'memorization'} --data_dir={data}"
    places = []
    for name, corpus in (("honest", "builtin"), ("overfit", "few")):
        place = out / "memorization" / name
        run(f"train.py configs/demo.py {size} --name={name} --data={corpus} {where}")
        for split in ("val", "train"):
            flags = f"--checkpoint last --cut 0.4 --split {split}"
            run(f"sample.py --model {place} --eval 20 --n 5 {flags}")
        places.append(str(place))
    run("rouge.py", *places)
    copy(out / "memorization" / "rouge.png", "rouge.png")


PARTS = (demo, patching, export, instruct, baselines, memorization)


def main() -> None:
    out = Path(sys.argv[1])
    chosen = sys.argv[2:]
    for part in PARTS:
        if not chosen or part.__name__ in chosen:
            part(out, out / "data")


if __name__ == "__main__":
    main()
