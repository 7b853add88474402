"""
Speeds beside a peer's: the last record of each bench that was saved on this machine (bench.py --save).

>>> speed_text(Path("bench/results.jsonl").read_text())  # Markdown, "" if nothing was saved here
"""

import json

from common.tables import table_text


def speed_text(results_jsonl: str) -> str:
    from kernels.cpu_features import hardware  # imports torch

    here, records = hardware(), [json.loads(line) for line in results_jsonl.splitlines()]
    last = {record["bench"]: record["ratios"] for record in records if record["hardware"] == here}
    rows = [[bench, name, f"{ratio:.2f}"] for bench, ratios in last.items() for name, ratio in ratios.items() if ratio]
    about = f"On {here}: ours / the peer's, medians; above 1 is better."
    return f"{about}\n\n{table_text(['bench', 'compared with', 'ratio'], rows)}" if rows else ""
