"""`ale lab simulate`: what asynchronous and multiplexed training would bring, and how well that is predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="A run folder: calibrate on every second step of it, predict the others."),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where figure and table go.")] = Path("runs/simulate"),
    scene: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="YAML with your machines, trainer and workload (docs: Simulate before you rent)."
        ),
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Simulate published runs: which part of their gain comes from what.")
    ] = False,
) -> None:
    """Simulate the loop on many machines, with the real sample buffer: timelines, the curve over rl.async_ratio."""
    if run is not None:
        from ale_lab.simulation.calibrate import predict

        found = predict(run)
        print(
            f"{run}: a step takes {found.measured_s:.2f} s, simulated {found.simulated_s:.2f} s ({found.error:+.1%}; "
            f"{found.steps} steps that calibrated nothing)"
        )
        return
    from ale.store.run_store import write_whole

    if published:
        from ale_lab.simulation.published import tables

        print(tables(), end="")
        return
    from ale_lab.simulation.scenes import RATIOS, Scene, curve, draw, read_scene, summarize, table, ways

    simulated = Scene() if scene is None else read_scene(scene)
    found_ways = ways(simulated)
    curves = {
        name: [
            summarize(f"async_ratio {ratio}, ahead {min(ratio, most)}", simulation)
            for ratio, simulation in curve(most, simulated).items()
        ]
        for name, most in (("ahead 1", 1), ("ahead = async_ratio", max(RATIOS)))
    }
    summaries = [summarize(name, simulation) for name, simulation in found_ways.items()]
    text = "\n".join(map(table, (summaries, *curves.values())))
    print(text)
    draw(found_ways, curves, out / "figure.png")
    for path in (out / "figure.png", write_whole(out / "table.md", text)):
        print(path)
