"""What pages quote of benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median
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
        + (f"\n{_against(found['against'])}" if "against" in found else "")
        + f"\n{_kept('make bench', 'fleet', 'durable')}"
    )


def _against(found: Any) -> str:
    """How long a tick takes with this code and with that of an earlier commit, in turns."""
    p99 = {name: median(run["tick_p99"] for run in runs) for name, runs in found["runs"].items()}
    return (
        f"With individual accounting, in turns with the code of {found['commit'][:7]}: 99th percentile of a tick "
        f"{p99['this']:.0f} ms, and {p99['earlier']:.0f} ms with the earlier code, a ratio of "
        f"{found['ratio_of_p99']:.2f}; ratio of the medians {found['ratio_of_medians']:.2f} "
        f"(`python -m benchmarks.fleet --against DIR`).\n"
    )


def capacity() -> str:
    """What 10,000 and 100,000 streams take, from one centre's ticks and intake and the boundaries of one bank."""
    found, bank, intake = read_results("fleet"), read_results("bank"), read_results("ingest")["http"]
    settings, tick = found["settings"], found["accounting"]["individual"]
    reports = settings["sensors"] / settings["interval_s"]
    busy = tick["work_ms"]["median"] / 1e3 / settings["interval_s"] / settings["streams"]
    written_mb = tick["bare_sync_ms"]["bytes"] / 1e6 / settings["interval_s"] / settings["streams"]
    sizes = sorted(map(int, bank["centres"]))
    largest = bank["centres"][str(sizes[-1])]
    per_account_s = largest["ms"]["closing"]["median"] / 1e3 / largest["accounts"]
    paced, full = intake["paced"], intake["full speed"]
    # Only reports that came in time count, and what they take of a core is measured at that pace.
    in_time = paced["per_second"] * paced["in_time"] / paced["sent"]
    per_shard, report_s = int(in_time / reports), paced["processor_us"] / 1e6

    def column(streams: int) -> list[str]:
        shards, sensors = ceil(streams / per_shard), streams * settings["sensors"]
        return [
            f"{streams * reports:,.0f}",
            f"{shards}",
            f"{ceil(round(streams * reports * report_s, 3))}",
            f"{ceil(round(streams * busy, 3))}",
            f"{streams * written_mb:.0f}",
            f"{shards / settings['interval_s']:,.0f}",
            f"{sensors * per_account_s:.0f}",
            f"{ceil(2 * sensors * per_account_s)}",
        ]

    names = [
        "reports per second",
        f"shards of {per_shard} streams, each with a core",
        "of their cores, busy with reports",
        "of their cores, busy with steps",
        "written to the ledgers' disks [MB/s]",
        "syncs of these disks per second",
        "to close one boundary at the bank [s]",
        "shortest epoch of one bank [s]",
    ]
    columns = [column(number) for number in (10_000, 100_000)]
    closings = [f"{bank['centres'][str(size)]['ms']['closing']['median'] / 1e3:.1f} s for {size}" for size in sizes]
    return (
        f"From runs on {_cores('fleet')} cores, for streams of {settings['sensors']} sensors at "
        f"{1 / settings['interval_s']:.0f} Hz with individual accounting. A centre takes "
        f"{in_time:,.0f} reports a second over HTTP in time, each for {paced['processor_us']} µs of a core; at full "
        f"speed it takes {full['per_second']:,}, of which {full['in_time'] / full['sent']:.0%} are in time. The steps "
        f"of {settings['streams']:,} "
        f"streams take {settings['streams'] * busy:.0%} of a core. A bank with the sensors of {settings['streams']:,} "
        f"streams at each centre closes a boundary in {', '.join(closings)} centres, and a closing has to fit into "
        f"half an epoch. So:\n\n"
        + make_table(
            ["", "10,000 streams", "100,000 streams"],
            [[name, *(values[place] for values in columns)] for place, name in enumerate(names)],
        )
        + "\nIn one centre the **intake** gives out first, long before the steps. In a fleet with one bank the "
        f"**bank** does: epochs of the default 2 s hold about {round(1 / per_account_s, -3):,.0f} sensors that "
        "report in one epoch. Above that, make the bank with longer epochs (a sensor then waits longer before it first "
        "counts), or one bank for each region whose sensors stay in it: the guarantee is then for each bank. The disks "
        "come last.\n"
        f"{_kept('make bench', 'fleet', 'ingest', 'bank')}"
    )


def fleet_kills() -> str:
    """A fleet on Ray whose nodes are killed."""
    found = read_results("fleet_kills")
    took = found["seconds_until_back"]
    return (
        f"{found['shards']} shards with {found['streams']} streams on 2 Ray nodes of one machine with "
        f"{_cores('fleet_kills')} cores, shared sensors and a bank; a node was killed {found['kills']} times: all "
        f"streams released again after {took['median']:.1f} s (median) and {took['max']:.1f} s (longest). Accounts "
        f"above their budget: {found['accounts_above_budget']}; steps released twice: "
        f"{found['steps_released_twice']}, of {found['releases_read']:,} releases read.\n"
        f"{_kept('make fleet-kills', 'fleet_kills')}"
    )


def bank_kills() -> str:
    """Centres with a bank that are killed in every way."""
    found = read_results("bank_kills")
    kills = found["kills"]
    return (
        f"Two centres with the same sensors and a bank were killed with signal 9 at random moments: a centre "
        f"{kills['centre']} times, PostgreSQL {kills['postgres']} times, both centres and PostgreSQL at once "
        f"{kills['everything']} times, and {kills['disk']} times a centre lost its disk and began anew. The spending "
        f"of {found['accounts']:,} accounts was then computed from a record that the test keeps. Accounts above their "
        f"budget: {found['accounts_above_budget']} (the largest share of a budget that was spent is "
        f"{found['largest_share_spent']:.0%}); steps with two releases: {found['steps_with_two_releases']}, of "
        f"{found['releases_published']:,} that were published; loans that the bank did not count exactly once: "
        f"{found['loans_not_counted_once']}.\n"
        f"*`{read_runs('bank_kills')[0]['command']}`, kept in `benchmarks/results/bank_kills.json`.*"
    )


def boundary() -> str:
    """One boundary of a bank whose centres share all their sensors."""
    found = read_results("boundary")
    whole, closing, quarter_ms = found["ms"]["boundary"], found["ms"]["closing"], 1e3 * found["epoch_s"] / 4
    claims = found["centres"] * found["shared_sensors"]
    return (
        f"{found['centres']} centres that share {found['shared_sensors']:,} sensors hand in {claims:,} claims and "
        f"{claims:,} statements for a boundary, and get {claims:,} slices. All of it takes the bank "
        f"{whole['best']:.0f} ms at best and {whole['median']:.0f} ms in the median, of which to close the boundary "
        f"takes {closing['median']:.0f} ms, on {_cores('boundary')} cores with a load average of "
        f"{found['load_average']:.1f}; the bank had a processor for {found['server_processor_ms']:.0f} ms of that. The "
        f"aim is a quarter of an epoch, {quarter_ms:.0f} ms.\n{_kept('make bench', 'boundary')}"
    )


def shared() -> str:
    """Ticks of centres that share all their sensors, and of centres that share nothing."""
    found, note = read_results("shared"), read_runs("shared")[0]["note"]
    settings, kinds = found["settings"], ("shared", "separate")
    rows = [
        ["a tick, median [ms]", *(f"{found['ms'][kind]['median']:.0f}" for kind in kinds)],
        ["a tick, 99th percentile [ms]", *(f"{found['ms'][kind]['p99']:.0f}" for kind in kinds)],
        ["its processor time, median [ms]", *(f"{found['processor_ms'][kind]['median']:.0f}" for kind in kinds)],
        ["ticks during a call to the bank, median [ms]"]
        + [f"{found['ms_during_calls'][kind]['median']:.0f}" for kind in kinds],
        ["steps skipped"]
        + [f"{found['skipped'][kind]} of {found['skipped'][kind] + found['ms'][kind]['repeats']:,}" for kind in kinds],
        ["smallest share of the sensors of a centre that paid in a round"]
        + [f"{found['share_of_sensors_that_paid'][kind]:.0%}" for kind in kinds],
        ["ticks that waited for the bank", *(f"{found['calls_in_ticks'][kind]}" for kind in kinds)],
    ]
    return (
        f"{settings['centres']} centres of {settings['streams']} streams at {1 / settings['interval_s']:.0f} Hz, each "
        f"with {settings['sensors']:,} sensors, all with one bank, on {_cores('shared')} cores with a load average of "
        f"{found['load_average']:.1f}:\n\n"
        + make_table(["", "all share the same sensors", "each has its own"], rows)
        + f"\nThe 99th percentile is {found['ratio_of_p99']:.2f} times that of centres that share nothing; the aim is "
        f"at most 1.3. {f'Note: {note}. ' if note else ''}{_kept('make bench', 'shared')}"
    )


def restart() -> str:
    """A restart after hours of service, and what a day takes on the disk."""
    found = read_results("restart")
    streams, last = found["streams"], found["ledgers"][-1]
    row_bytes, hours = last["bytes_per_row"], last["steps"] * found["interval_s"] / 3600
    rows = [
        [
            f"{one['rows']:,}",
            f"{one['bytes_per_row']:.0f}",
            f"{one['open_ledger_s']:.1f}",
            f"{one['to_first_release_s']:.0f}",
            f"{one['processor_s']:.1f}",
            f"{one['verify_s']:.0f}",
        ]
        for one in found["ledgers"]
    ]
    heads = ["rows", "bytes a row", "open the ledger [s]", "to the first release [s]", "of processor time [s]"]
    return (
        f"A centre of {streams:,} streams on {_cores('restart')} cores, started again after {last['steps'] // 10:,} "
        f"and after {last['steps']:,} steps, {hours:.1f} hours with a release every {found['interval_s']:g} s; "
        f"the load average was {found['load_average']:.1f}:\n\n"
        + make_table([*heads, "to verify every row [s]"], rows)
        + f"\nSo a stream takes {row_bytes * 8640 / 1e6:.1f} MB a day with a release every 10 s, and "
        f"{row_bytes * 5 * 86_400 / 1e6:.0f} MB a day at 5 Hz. All rows are kept; `--keep-rows` packs old ones. "
        f"A packed row takes {found['packed_bytes_per_row']:.0f} bytes. " + _kept("make bench", "restart")
    )


def _bare(kinds: list[dict[str, Any]], statistic: str) -> list[float]:
    return [kind["bare_sync_ms"][statistic] for kind in kinds]


def ingest() -> str:
    """Reports a second into a running centre."""
    found = read_results("ingest")
    names = ("per_second", "sent", "lost", "in_time")
    rows = [
        [way.upper(), pace, *(f"{figures[name]:,}" for name in names), f"{figures['processor_us']:.0f}"]
        for way in ("http", "mqtt")
        for pace, figures in found[way].items()
    ]
    settings, alone = found["settings"], found["accept_us"]
    heads = ["over", "sent", "reports a second", "reports", "lost", "in time for their step", "processor time [µs]"]
    return (
        f"A centre with {settings['streams']} streams at {1 / settings['interval_s']:.0f} Hz, "
        f"{settings['seconds']} s for each row, on {_cores('ingest')} cores with a load average of "
        f"{found['load'][0]:.1f}. The last column is the processor time of the centre for each report:\n\n"
        + make_table(heads, rows)
        + f"\nTo parse, check and hand over a report takes {alone['with MACs']:.1f} µs of processor time; without the "
        f"check of its MAC {alone['MACs not checked']:.1f} µs. {_kept('make bench', 'ingest')}"
    )


def crowd() -> str:
    """Steps skipped while many read."""
    found = read_results("crowd")
    settings, before, after = found["settings"], found["alone"], found["with the crowd"]
    clients = (
        f"{settings['greedy']} clients that read old releases as fast as they get them, {settings['subscribers']:,} "
        f"subscribers and {settings['slow']:,} slow connections"
    )
    return (
        f"A centre with {settings['streams']} streams every {settings['interval_s']:g} s, on {_cores('crowd')} cores "
        f"with a load average of {found['load'][0]:.1f}: in a minute with {clients} it "
        f"skipped {after['skipped']} of {after['steps']} steps; in the minute before, without them, "
        f"{before['skipped']} of {before['steps']}. "
        f"*`{read_runs('crowd')[0]['command']}`, kept in `benchmarks/results/crowd.json`.*"
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


def signatures() -> str:
    """What a signature costs."""
    ms = read_results("signatures")["ms"]
    return (
        f"A signed release message takes {ms['signed message']['median']:.3f} ms to make "
        f"({ms['signed message']['p99']:.2f} ms at the 99th percentile), one without a signature "
        f"{ms['message']['median']:.3f} ms. To check a signature takes {ms['check']['median']:.2f} ms. "
        f"{_kept('make bench', 'signatures')}"
    )


def fuzz() -> str:
    """Inputs that fuzzing tried."""
    found = read_results("fuzz")
    rows = [
        [name, f"{one['inputs']:,}", f"{one['covered']:,}", f"{one['megabytes']:,} MB"]
        for name, one in found["targets"].items()
    ]
    return (
        f"{found['inputs']:,} inputs: no crash, no error and no measurement in the log, and nothing was refused in "
        f"another than the documented way. The {found['targets']['http']['inputs']:,} inputs of `http` go to both "
        "doors: no status 5xx, and no measurement in an answer.\n\n"
        + make_table(["parser", "inputs", "places covered", "largest memory"], rows)
        + f"\n*`{read_runs('fuzz')[0]['command']}`, kept in `benchmarks/results/fuzz.json`.*"
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


def sumo() -> str:
    """Time and memory of reading SUMO's XML."""
    rows = [
        [f"{each['bytes'] / 1e9:.1f} GB, {each['rows']:,} rows", f"{each['with_trajectories_s']}"]
        + [f"{each['mb_per_s']:.0f} MB/s", f"{each['kept']:,}", f"{each['peak_rss_mb']} MB"]
        for each in read_results("reader")["sumo"].values()
    ]
    table = make_table(["XML", "seconds", "speed", "rows kept", "peak memory"], rows)
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


QUOTES = {
    quote.__name__: quote
    for quote in (
        speed,
        fleet,
        fleet_kills,
        bank_kills,
        boundary,
        shared,
        restart,
        capacity,
        ingest,
        crowd,
        page,
        signatures,
        fuzz,
        periods,
        reader,
        sumo,
        rl,
    )
}
