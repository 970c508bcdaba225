"""Run the quickstart for several seeds; print the README's table without its fresh tasks, and draw its picture.

    python benchmarks/quickstart.py [--seeds 1 2 3] [--svg docs/quickstart.svg] [--runs RUN ...]

With `--runs`, the table and the picture are made from finished run folders and nothing is run. The column of fresh
tasks is not part of a run: `ale eval RUN tasks.seed=977 --episodes 256` measures it for each folder.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ALE = Path(sys.executable).with_name("ale")
COLORS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626")
WIDTH, HEIGHT, LEFT, TOP, PLOT_W, PLOT_H = 720, 320, 56, 40, 560, 220


def run(seed: int) -> Path:
    """Make one run of the example; return its folder."""
    command = [str(ALE), "run", "examples/quickstart.yaml", f"seed={seed}", f"name=quickstart-{seed}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.splitlines()[-1]).parent


def row(summary: dict) -> str:
    """Format a line of the table."""
    held = summary["heldout"]
    cells = [f"{held[k]['success']:.2f}" for k in ("before_sft", "after_sft", "after_rl")]
    return f"| {summary['seed']} | {' | '.join(cells)} | {summary['seconds']['total']:.0f} |"


def draw(summaries: list[dict]) -> str:
    """Draw held-out success over RL steps, one line per seed."""
    points = {
        s["seed"]: [(v["step"], v["success"]) for k, v in s["heldout"].items() if k != "before_sft"] for s in summaries
    }
    last = max(step for line in points.values() for step, _ in line)

    def place(step: float, success: float) -> str:
        return f"{LEFT + PLOT_W * step / last:.1f},{TOP + PLOT_H * (1 - success):.1f}"

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" '
        'font-size="13">',
        "<title>Held-out success over RL steps</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="600" fill="#111827">Held-out success over RL '
        "steps</text>",
    ]
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1.0):
        y = TOP + PLOT_H * (1 - tick)
        out.append(f'<line x1="{LEFT}" x2="{LEFT + PLOT_W}" y1="{y}" y2="{y}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#4b5563">{tick:.1f}</text>')
    for step in sorted({step for line in points.values() for step, _ in line}):
        x = LEFT + PLOT_W * step / last
        out.append(f'<text x="{x:.1f}" y="{TOP + PLOT_H + 20}" text-anchor="middle" fill="#4b5563">{step}</text>')
    out.append(
        f'<text x="{LEFT + PLOT_W / 2}" y="{TOP + PLOT_H + 42}" text-anchor="middle" fill="#111827">RL step</text>'
    )
    for i, (seed, line) in enumerate(points.items()):
        color = COLORS[i % len(COLORS)]
        out.append(
            f'<polyline fill="none" stroke="{color}" stroke-width="2.5" points="{" ".join(place(*p) for p in line)}"/>'
        )
        out += [f'<circle cx="{c[0]}" cy="{c[1]}" r="4" fill="{color}"/>' for p in line if (c := place(*p).split(","))]
        y = TOP + 16 + 20 * i
        out.append(
            f'<line x1="{LEFT + PLOT_W + 16}" x2="{LEFT + PLOT_W + 34}" y1="{y}" y2="{y}" stroke="{color}" '
            'stroke-width="3"/>'
        )
        out.append(f'<text x="{LEFT + PLOT_W + 40}" y="{y + 4}" fill="#111827">seed {seed}</text>')
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    """Run or read, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--runs", type=Path, nargs="+", help="finished run folders")
    parser.add_argument("--svg", type=Path, help="where to draw the picture")
    options = parser.parse_args()
    folders = options.runs or [run(seed) for seed in options.seeds]
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    print("| seed | before SFT | after SFT | after RL | seconds |\n| --- | --- | --- | --- | --- |")
    for summary in summaries:
        print(row(summary))
    if options.svg:
        options.svg.write_text(draw(summaries))


if __name__ == "__main__":
    main()
