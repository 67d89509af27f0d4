"""What pages quote of benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.markdown import make_table
from tools.results import read_results, read_runs


def speed() -> str:
    """Time of a gradient update and of a live step."""
    update, live = read_results("update"), read_results("live_step")
    total, individual = (live["ms"][accounting] for accounting in ("total", "individual"))
    return (
        f"On {update['devices']} cores a gradient update takes {update['ms']['packed, all devices']['median']:.0f} ms, "
        f"and a plain version of it (a GRU cell vmapped over all slots in a scan) "
        f"{update['ms']['plain']['median']:.0f} ms. A live step for {live['settings']['sensors']} sensors takes "
        f"{total['all']['median']:.2f} ms with total accounting and {individual['all']['median']:.2f} ms with "
        f"individual accounting, of which the exact release takes {total['release']['median']:.2f} ms and "
        f"{individual['release']['median']:.2f} ms. {_kept('make bench', 'update', 'live_step')}"
    )


def fleet() -> str:
    """Ticks of many streams in one process, and a durable release."""
    found, durable = read_results("fleet"), read_results("durable")
    settings = found["settings"]
    columns = ["total", "individual"]
    kinds = [found["accounting"][name] for name in columns]
    earlier = [[run[name] for run in found["earlier"]] for name in columns]

    def row(label: str, values: Sequence[float], form: str = ".0f") -> list[str]:
        return [label, *(f"{value:{form}}" for value in values)]

    rows = [
        row("a tick, median [ms]", [kind["tick_ms"]["median"] for kind in kinds]),
        row("a tick, 99th percentile [ms]", [kind["tick_ms"]["p99"] for kind in kinds]),
        row("without the wait for the disk, 99th percentile [ms]", [kind["work_ms"]["p99"] for kind in kinds]),
        row("a file of the same size, written and synced, 99th percentile [ms]", _bare(kinds, "p99")),
        row("the same, longest [ms]", _bare(kinds, "max")),
        row(f"ticks missed, of {kinds[0]['steps']}", [kind["missed"] for kind in kinds]),
        [f"ticks missed in the {len(earlier[0])} runs before", *(_several([r["missed"] for r in e]) for e in earlier)],
        row("longest work in those runs [ms]", [max(run["work_max"] for run in runs) for runs in earlier]),
        row("longest wait for the disk in those runs [ms]", [max(run["sync_max"] for run in runs) for runs in earlier]),
        row(
            "a durable release of one stream, over its noise and one sync of a file",
            [durable["ms"][name]["ratio_of_medians"] for name in columns],
            ".1f",
        ),
    ]
    return (
        f"{settings['streams']:,} streams of {settings['sensors']} sensors at {1 / settings['interval_s']:.0f} Hz in "
        f"one process on {_cores('fleet')} cores, every release committed durably:\n\n"
        + make_table(["", *(f"{name} accounting" for name in columns)], rows)
        + f"\n{_kept('make bench', 'fleet', 'durable')}"
    )


def _bare(kinds: list[dict[str, Any]], statistic: str) -> list[float]:
    return [kind["bare_sync_ms"][statistic] for kind in kinds]


def ingest() -> str:
    """Reports a second into a running centre."""
    found = read_results("ingest")
    rows = [
        [way.upper(), pace, *(f"{figures[name]:,}" for name in ("per_second", "sent", "lost", "in_time"))]
        for way in ("http", "mqtt")
        for pace, figures in found[way].items()
    ]
    settings = found["settings"]
    return (
        f"A centre with {settings['streams']} streams at {1 / settings['interval_s']:.0f} Hz, "
        f"{settings['seconds']} s for each row, on {_cores('ingest')} cores:\n\n"
        + make_table(["over", "sent", "reports a second", "reports", "lost", "in time for their step"], rows)
        + f"\n{_kept('make bench', 'ingest')}"
    )


def page() -> str:
    """How fast the live page is."""
    found = read_results("page")
    first, paint, gap = (found["ms"][name] for name in ("first_release", "first_paint", "between_updates"))
    return (
        f"In headless Chromium on {_cores('page')} cores the page shows something {paint['median'] / 1e3:.2f} s after "
        f"it was requested and has drawn its first release after {first['median'] / 1e3:.2f} s "
        f"({first['p99'] / 1e3:.2f} s at the 99th percentile of {first['repeats']} visits). It takes "
        f"{found['kilobytes']:.0f} kB. It then changes "
        f"{found['updates_per_second']:.1f} times a second, {gap['p99']:.0f} ms apart at the 99th percentile. "
        f"{_kept('make bench', 'page')}"
    )


def periods() -> str:
    """Density and speed of US-101 by period."""
    rows = []
    for period in read_results("reader")["periods"]:
        name, vehicles, *numbers, flow = period.values()
        rows.append([name, f"{vehicles:,}", *map(str, numbers), f"{flow:,.0f}"])
    return make_table(["period", "vehicles", "mean veh/km", "std", "min", "max", "speed m/s", "flow veh/h"], rows)


def reader() -> str:
    """Time and memory of reading recordings."""
    rows = [
        [name, f"{each['with_trajectories_s']}", f"{each['cpu_s']}", f"{each['peak_rss_mb']} MB"]
        for name, each in read_results("reader")["reading"].items()
    ]
    table = make_table(["files", "seconds", "of processor time", "peak memory"], rows)
    return f"{table}\n{_kept('make bench DATA=DIR', 'reader')}"


def rl() -> str:
    """Our PPO against Stable-Baselines3."""
    found = read_results("rl")
    peer = found["peer"]
    rows = []
    for name, target in found["targets"].items():
        wall, cpu = target["wall_s"], target["cpu_s"]
        cells = [name, f"{target['error']:.1f}", f"{wall['peer']:.0f} s", f"{_several(wall['ours'])} s"]
        rows.append([*cells, *(_several(clock["times_sooner"]) for clock in (wall, cpu))])
    trials = ", ".join(f"{name} {trial['error']:.0f}" for name, trial in found["trials"].items())
    return (
        make_table(
            [
                f"error of Stable-Baselines3 ({peer['setting']})",
                "(veh/km)^2",
                "it first had it after",
                "ours after",
                "its whole time over ours",
                "by processor time",
            ],
            rows,
        )
        + f"\nOurs ran with three seeds, {found['ours'][0]['curve']['wall_s'][-1]:.0f} s each. The lowest errors are "
        + f"{_several([ours['error'] for ours in found['ours']])}; even spending has {found['even_spending']:.0f}. "
        + f"Stable-Baselines3 ran for {peer['wall_s']:.0f} s, of which it had a processor for {peer['cpu_s']:.0f} s. "
        + f"The lowest errors in the trials of its settings: {trials}. {_kept('make bench-rl', 'rl')}"
    )


def _several(values: Sequence[float | None]) -> str:
    return ", ".join("never" if value is None else f"{value:.0f}" for value in values)


def _cores(name: str) -> int:
    return int(read_runs(name)[0]["hardware"]["cores"])


def _kept(command: str, *names: str) -> str:
    files = " and ".join(f"`benchmarks/results/{name}.json`" for name in names)
    return f"*`{command}`, kept in {files}.*\n"


QUOTES = {quote.__name__: quote for quote in (speed, fleet, ingest, page, periods, reader, rl)}
