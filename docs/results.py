"""The results that README and docs quote: written into them from the results files by `make results`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README, ENVIRONMENT, PAGE = ROOT / "README.md", ROOT / "docs/environment.md", ROOT / "docs/page.md"
REMOTE = ROOT / "docs/remote.md"
LIVE = ROOT / "docs/live.md"
RESULTS = ROOT / "benchmarks/results"
_BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.S)
_US101 = re.compile(r"(?<=<!-- us101 -->\n).*?(?=<!-- /us101 -->)", re.S)
_RACE = re.compile(r"(?<=<!-- race -->\n).*?(?=<!-- /race -->)", re.S)
_FLEET = re.compile(r"(?<=<!-- fleet -->\n).*?(?=<!-- /fleet -->)", re.S)
_PAGE = re.compile(r"(?<=<!-- page -->\n).*?(?=<!-- /page -->)", re.S)
_LIVE = re.compile(r"(?<=<!-- live-design -->\n).*?(?=<!-- /live-design -->)", re.S)


def read(name: str) -> dict[str, Any]:
    """One results file."""
    return dict(json.loads((RESULTS / f"{name}.json").read_text()))


def quoted() -> str:
    """The part of README that quotes results."""
    demo, update, live = read("demo"), read("update"), read("live_step")
    rows = [
        (name, design["mse"], demo["paired"].get(name), f"{design['budget_spent_max']:.4f}")
        for name, design in demo["designs"].items()
    ]
    rows.append(("no noise (non-private floor)", demo["non_private_mse"], None, ""))
    rows.append(("no releases (prior)", demo["prior_mse"], None, ""))
    table = [
        "| design | squared error [(veh/km)^2] | over classical (95% interval) | most spent of 0.5 |",
        "|---|---|---|---|",
        *(f"| {name} | {mse:.0f} | {_ratio(paired)} | {spent} |" for name, mse, paired, spent in rows),
    ]
    speed = update["speed_up"]["packed, all devices"]
    total, individual = (live["ms"][accounting] for accounting in ("total", "individual"))
    return (
        "\n".join(table)
        + "\n\n*`make demo`, kept in [benchmarks/results/demo.json](benchmarks/results/demo.json).*\n\n"
        + f"A gradient update takes {update['ms']['packed, all devices']['median']:.0f} ms on {update['devices']} "
        + f"cores, {speed:.1f} times less than the plain version (a GRU cell vmapped over all slots in a scan), "
        + f"{update['arithmetic']['times_the_limit']:.0f} times what its matrix products alone would need at the speed "
        + "of a large one: the rest is element-wise work and memory. A live step for 64 sensors takes "
        + f"{total['without noise']['median']:.2f} ms ({individual['without noise']['median']:.2f} ms with individual "
        + f"accounts) and {total['all']['median']:.2f} ms ({individual['all']['median']:.2f} ms) with the exact "
        + "release. *`make bench`, kept in [benchmarks/results](benchmarks/results).*\n"
    )


def quoted_us101() -> str:
    """The part of README on real traffic."""
    found = json.loads((ROOT / "experiments/us101/results.json").read_text())
    budgets = 0.07, 0.15, 0.5, 1.5
    kinds = found["split"]["remove-one"] | {
        name: rows
        for name, rows in found["guided"]["tables"]["remove-one, the paper's split, guided"].items()
        if name.endswith("guided")
    }
    names = {
        "classical": "classical",
        "ppo": "the paper's Algorithm 2 (PPO)",
        "pathwise": "adaptive, with the paper's features",
        "pathwise, guided": "adaptive",
        "individual, guided": "individual",
    }
    lines = ["| squared error [(veh/km)^2] | " + " | ".join(f"B = {budget:g}" for budget in budgets) + " |"]
    lines.append("|---" * (len(budgets) + 1) + "|")
    for kind, name in names.items():
        rows = [row for row in kinds[kind] if row["budget"] in budgets]
        cells = [f"{row['mse']:.0f}" + (f" ({row['ratio']:.2f})" if "ratio" in row else "") for row in rows]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    enlarged = found["enlarged"]["tables"]["remove-one, with simulated traffic"]["individual"]
    floor = found["enlarged"]["floor"]["mse"]
    lower = ", ".join(f"{row['mse']:.0f}" for row in enlarged if row["budget"] in budgets)
    return (
        "\n".join(lines)
        + "\n\n*Remove-one adjacency, in brackets the error over that of a classical design trained beside; without "
        + f"noise {found['floor']['mse']:.0f}, without releases {found['prior_mse']:.0f}. Individual designs "
        + "with the paper's features, but trained on ten hours of simulated traffic besides, and twice as long, come "
        + f"down to {lower} (without noise {floor:.0f}). "
        + "[experiments/us101](experiments/us101/README.md) has both adjacencies, intervals, folds and figures.*\n"
    )


def _ratio(paired: dict[str, Any] | None) -> str:
    return f"{paired['ratio']:.2f} ({paired['ci95'][0]:.2f} to {paired['ci95'][1]:.2f})" if paired else ""


def race() -> str:
    """The part of docs/environment.md that quotes the race against Stable-Baselines3."""
    rl = read("rl")
    peer, names = rl["peer"], ("wall_s", "cpu_s")
    table = [
        f"| error of Stable-Baselines3 ({peer['setting']}) | (veh/km)^2 | it first had it after | ours after | its "
        "whole time over ours | by processor time |",
        "|---|---|---|---|---|---|",
    ]
    for name, target in rl["targets"].items():
        wall, cpu = (target[clock] for clock in names)
        cells = [name, f"{target['error']:.1f}", f"{wall['peer']:.0f} s", f"{_several(wall['ours'])} s"]
        table.append(f"| {' | '.join([*cells, *(_several(clock['times_sooner']) for clock in (wall, cpu))])} |")
    trials = ", ".join(f"{name} {trial['error']:.0f}" for name, trial in rl["trials"].items())
    return (
        "\n".join(table)
        + f"\n\nOurs with three seeds, {rl['ours'][0]['curve']['wall_s'][-1]:.0f} s each; the lowest errors are "
        + f"{_several([ours['error'] for ours in rl['ours']])}, even spending has {rl['even_spending']:.0f}. "
        + f"Stable-Baselines3 had {peer['wall_s']:.0f} s, {peer['cpu_s']:.0f} s of them on a processor; the rest went "
        + f"to other work of the machine. The lowest errors in the trials of its settings: {trials}. "
        + "*`make bench-rl`, kept in [../benchmarks/results/rl.json](../benchmarks/results/rl.json).*\n"
    )


def page() -> str:
    """The part of docs/page.md on how fast it is."""
    found = read("page")
    up, paint, gap = found["ms"]["up"], found["ms"]["first paint"], found["ms between updates"]
    return (
        f"In headless Chromium on {found['machine']['cores']} cores the page has drawn its first release "
        f"{up['median'] / 1e3:.2f} s after it was asked for ({up['p99'] / 1e3:.2f} s in the slowest of {up['repeats']} "
        f"visits), and is seen after {paint['median'] / 1e3:.2f} s. It takes {found['kilobytes']:.0f} kB and then "
        f"changes {found['updates per second']:.1f} times a second, {gap['p99']:.0f} ms apart at the 99th percentile. "
        "*`make bench`, kept in [../benchmarks/results/page.json](../benchmarks/results/page.json).*\n"
    )


def fleet() -> str:
    """The part of docs/live.md on many streams in one process."""
    found, durable = read("fleet"), read("durable")
    setting, kinds = found["setting"], found["accounting"]
    ticks, work, bare = (
        {name: kind[part] for name, kind in kinds.items()} for part in ("tick_ms", "work_ms", "bare_sync_ms")
    )
    ratios = {name: kind["ratio of medians"] for name, kind in durable["ms"].items()}
    return (
        f"{setting['streams']:,} streams of {setting['sensors']} sensors at {1 / setting['interval_s']:.0f} Hz in one "
        f"process on {found['machine']['cores']} cores, every release committed durably: a tick takes "
        f"{ticks['total']['median']:.0f} ms with total accounting ({ticks['total']['p99']:.0f} ms at the 99th "
        f"percentile) and {ticks['individual']['median']:.0f} ms ({ticks['individual']['p99']:.0f} ms) with "
        f"{setting['streams'] * setting['sensors']:,} individual accounts; of {kinds['total']['steps']} and "
        f"{kinds['individual']['steps']} ticks {kinds['total']['missed']} and {kinds['individual']['missed']} were "
        f"missed. The 99th percentile of all but the wait for the disk is {work['total']['p99']:.0f} and "
        f"{work['individual']['p99']:.0f} ms; files of the same size that were written and synced in between took "
        f"{bare['total']['p99']:.0f} and {bare['individual']['p99']:.0f} ms there, and {bare['total']['max']:.0f} and "
        f"{bare['individual']['max']:.0f} ms at worst. One durable release of one stream takes {ratios['total']:.1f} "
        f"({ratios['individual']:.1f}) times as long as its noise and one sync of a file. *`make bench`, kept in "
        "[../benchmarks/results/fleet.json](../benchmarks/results/fleet.json) and "
        "[durable.json](../benchmarks/results/durable.json).*\n" + _earlier(found["earlier"])
    )


def _earlier(runs: list[dict[str, Any]]) -> str:
    """How the runs before the one that is quoted went."""
    if not runs:
        return ""
    missed = [sum(run["missed"] for run in both.values()) for both in runs]
    p99 = {name: max(both[name]["tick_p99"] for both in runs) for name in ("total", "individual")}
    work, sync = (max(run[name] for both in runs for run in both.values()) for name in ("work_max", "sync_max"))
    return (
        f"\nThe {len(runs)} runs before it missed {_several(missed)} of their ticks, with a 99th percentile of at most "
        f"{p99['total']:.0f} and {p99['individual']:.0f} ms. The work itself never took more than {work:.0f} ms, but a "
        f"commit waited up to {sync:.0f} ms for the disk: if that makes a tick late, it costs the next.\n"
    )


def _several(values: list[float | None]) -> str:
    return ", ".join("never" if value is None else f"{value:.0f}" for value in values)


def live_design() -> str:
    """The part of docs/remote.md on the design that comes with dpfuse."""
    found = json.loads((ROOT / "src/dpfuse/designs/freeway.json").read_text())
    rows = [
        ("the design", f"{found['mse']:.0f} ({found['ci95'][0]:.0f} to {found['ci95'][1]:.0f})"),
        ("no noise (non-private floor)", f"{found['non_private_mse']:.0f}"),
        ("no releases (prior)", f"{found['prior_mse']:.0f}"),
    ]
    test, spent = found["test"], f"{found['budget_spent_max']:.4f} of {found['guarantee']['budget']:g}"
    text = (
        "| | squared error [(veh/km)^2], 95% interval |\n|---|---|\n"
        + "".join(f"| {name} | {error} |\n" for name, error in rows)
        + f"\n*{test['runs']} runs of {test['minutes']} minutes that it has not seen, {100 * found['share']:.0f}% of "
        + f"the vehicles report. Its 95% interval held the truth {100 * found['coverage']:.0f}% of the time; the "
        + f"vehicle that spent most spent {spent}. `make live-design`, kept in "
        + "[freeway.json](../src/dpfuse/designs/freeway.json).*\n"
    )
    if us101 := found["us101"]:
        text += (
            "\nOn the recorded US-101, which is another road with other drivers, the same design has "
            + f"{us101['mse']:.0f} against {us101['prior_mse']:.0f} without releases, and its interval holds the truth "
            + f"{100 * us101['coverage']:.0f}% of the time: for a road of your own, train a design of your own.\n"
        )
    return text


def main() -> None:
    """Write the results into README and docs."""
    text = _BLOCK.sub(lambda _: quoted(), README.read_text())
    README.write_text(_US101.sub(lambda _: quoted_us101(), text))
    PAGE.write_text(_PAGE.sub(lambda _: page(), PAGE.read_text()))
    LIVE.write_text(_FLEET.sub(lambda _: fleet(), LIVE.read_text()))
    ENVIRONMENT.write_text(_RACE.sub(lambda _: race(), ENVIRONMENT.read_text()))
    REMOTE.write_text(_LIVE.sub(lambda _: live_design(), REMOTE.read_text()))


if __name__ == "__main__":
    main()
