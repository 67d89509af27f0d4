"""The grid, its groups, what is run again, and the tables; nothing is trained here."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

import dpfuse
from dpfuse.errors import FileRefused, TrainingWarning
from dpfuse.sweeps.grid import expand_settings, period_in_words
from dpfuse.sweeps.reports import report_from_dict, report_to_dict
from dpfuse.sweeps.sweep import has_gpu
from experiments.running import train_all
from support.designs import make_design
from sweeps.conftest import pretend_report

SETTINGS = {"plain": {"spending": "constant"}, "wide": {"filter_size": [4, 8]}}


def run(parts, guarantees, out=None, **options):
    options = {"seeds": [0, 1], "settings": SETTINGS, "workers": 0} | options
    return dpfuse.sweep({"walks": parts}, guarantees, out=out, **options)


def test_every_combination_has_one_row(pretended, parts, guarantees):
    rows = run(parts, guarantees).rows
    found = [(r["setting"], r["budget"], r["accounting"], r["seed"], r.get("filter_size")) for r in rows]
    kinds = [(0.5, "total"), (1.5, "total"), (0.5, "individual"), (None, None)]
    names = [("plain", None), ("wide, filter_size 4", 4), ("wide, filter_size 8", 8)]
    assert found == [(name, *kind, seed, size) for name, size in names for kind in kinds for seed in (0, 1)]


def test_designs_that_share_a_program_are_trained_side_by_side(pretended, parts, guarantees):
    run(parts, guarantees, settings={"plain": {}})
    assert pretended.calls == [
        [(0.5, 0), (0.5, 1), (1.5, 0), (1.5, 1)],  # total
        [(0.5, 0), (0.5, 1)],  # individual
        [(None, 0), (None, 1)],
    ]


def test_designs_of_different_periods_share_no_program_no_mean_and_no_line(pretended, parts, guarantees, tmp_path):
    kinds = [replace(guarantees[0], period=period) for period in (None, "day", 90.0)]
    result = run(parts, kinds, tmp_path / "out", settings={"plain": {}})
    assert pretended.calls == [[(0.5, 0), (0.5, 1)]] * 3
    assert [row["period"] for row in result.rows] == [None, None, "day", "day", "90 s", "90 s"]
    assert [(row["period"], row["num_seeds"]) for row in result.summary()] == [(None, 2), ("day", 2), ("90 s", 2)]
    assert "| 0.5 per day at order 2, remove-one, total |" in result.to_text()
    assert len(result.figures()["error-against-budget"].axes[0].get_lines()) >= 3
    assert len(result.save_tables()) == 4 and len(result.select(period="90 s").rows) == 2


def test_periods_that_differ_in_their_last_digits_have_different_words(guarantees):
    periods = (604800.0, 604801.0, 1234567.0, 1234568.0, 90.125, 90.1251)
    words = [period_in_words(replace(guarantees[0], period=period)) for period in periods]
    assert words == ["604800 s", "604801 s", "1234567 s", "1234568 s", "90.125 s", "90.1251 s"]


def test_groups_have_at_most_the_given_size_and_nearly_equal_ones(pretended, parts, guarantees):
    run(parts, guarantees[:1], seeds=range(7), settings={"plain": {}}, group_size=3)
    assert [len(call) for call in pretended.calls] == [2, 2, 3]


def test_a_sweep_that_is_run_again_trains_only_what_is_new(pretended, parts, guarantees, tmp_path):
    first = run(parts, guarantees, tmp_path / "out")
    pretended.calls.clear()
    again = run(parts, guarantees, tmp_path / "out")
    assert again.rows == first.rows and pretended.calls == []
    more = run(parts, guarantees, tmp_path / "out", seeds=[0, 1, 2])
    assert len(more.rows) == 36 and {seed for call in pretended.calls for _, seed in call} == {2}


@pytest.mark.parametrize("change", ["data", "settings", "evaluation", "own test", "version", "design file"])
def test_what_decides_a_design_makes_it_be_trained_again(pretended, parts, guarantees, tmp_path, change, monkeypatch):
    options = {"settings": {"plain": {}}, "seeds": [0], "out": tmp_path / "out"}
    run(parts, guarantees[:1], **options)
    if change == "data":
        parts = (replace(parts[0], state=parts[0].state + np.float32(1e-6)), *parts[1:])
    elif change == "settings":
        options["settings"] = {"plain": {"learning_rate": 0.01}}
    elif change == "evaluation":
        options["evaluation"] = {"num_draws": 5}
    elif change == "own test":
        options["test"] = lambda design, recording: {}
    elif change == "version":
        monkeypatch.setattr(dpfuse, "__version__", "another")
    else:
        next((tmp_path / "out/designs").iterdir()).unlink()
    run(parts, guarantees[:1], **options)
    assert len(pretended.calls) == 2


def test_a_sweep_that_is_stopped_keeps_the_groups_that_are_done(pretended, parts, guarantees, tmp_path, monkeypatch):
    def stop(guarantee, seed):
        if guarantee is None:
            raise KeyboardInterrupt

    pretended.diverges = stop
    with pytest.raises(KeyboardInterrupt):
        run(parts, guarantees, tmp_path / "out", settings={"plain": {}})
    assert len(list((tmp_path / "out/groups").iterdir())) == 2
    pretended.calls.clear()
    pretended.diverges = lambda guarantee, seed: False
    assert len(run(parts, guarantees, tmp_path / "out", settings={"plain": {}}).rows) == 8
    assert pretended.calls == [[(None, 0), (None, 1)]]


def test_a_design_that_diverges_fails_alone_and_is_named(pretended, parts, guarantees, tmp_path):
    pretended.diverges = lambda guarantee, seed: seed == 1 and guarantee.budget == 1.5
    with pytest.warns(
        TrainingWarning, match="1 of 4 designs failed: walks, plain, budget 1.5 remove-one total, seed 1"
    ):
        result = run(parts, guarantees[:2], tmp_path / "out", settings={"plain": {}})
    assert [(row["budget"], row["seed"]) for row in result.rows] == [(0.5, 0), (0.5, 1), (1.5, 0)]
    assert "TrainingDiverged: not finite" in result.failures[0].reason
    # It is tried again, and with it nothing else.
    pretended.calls.clear()
    pretended.diverges = lambda guarantee, seed: False
    assert len(run(parts, guarantees[:2], tmp_path / "out", settings={"plain": {}}).rows) == 4
    assert pretended.calls == [[(1.5, 1)]]


def test_settings_may_have_guarantees_seeds_and_recordings_of_their_own(pretended, parts, guarantees):
    settings = {"all": {}, "few": {"guarantees": [None], "seeds": [7], "recordings": ["second"]}}
    rows = dpfuse.sweep({"first": parts, "second": lambda: parts}, guarantees[:1], settings=settings, workers=0).rows
    found = [(row["recording"], row["setting"], row["budget"], row["seed"]) for row in rows]
    assert found == [("first", "all", 0.5, 0), ("second", "all", 0.5, 0), ("second", "few", None, 7)]


def test_a_setting_may_be_evaluated_in_its_own_way(pretended, parts, guarantees, tmp_path):
    options = {"seeds": [0], "out": tmp_path, "evaluation": {"num_draws": 2}}
    run(parts, guarantees[:1], settings={"plain": {}, "long": {"evaluation": {"stride": 8}}}, **options)
    assert [work.evaluation for work in pretended.work] == [{"num_draws": 2}, {"num_draws": 2, "stride": 8}]
    run(parts, guarantees[:1], settings={"long": {"evaluation": {"stride": 8, "num_draws": 2}}}, **options)
    assert len(pretended.work) == 2  # it is the same design


def read_errors(design, recording):
    """A test of our own, with numbers of numpy."""
    error = np.abs(recording.state).mean()
    return {"mean_size": error, "by_filter": {design.structure.recurrent_filter: (error, recording.num_runs)}}


def test_a_test_of_our_own_adds_columns_that_are_kept_with_the_design(parts, tmp_path, monkeypatch):
    design, calls = replace(make_design(num_channels=1), training={"method": "pathwise", "validation_mse": 1.0}), []
    monkeypatch.setattr("dpfuse.training.train.train_pairs", lambda *parts, **options: calls.append(1) or [design])
    options = {"seeds": [0], "settings": {"plain": {}}, "test": read_errors}
    for _ in range(2):
        (row,) = run(parts, [design.guarantee], tmp_path, **options).rows
        size = float(np.abs(parts[2].state).mean())
        assert row["mean_size"] == pytest.approx(size)
        assert row["by_filter"] == {design.structure.recurrent_filter: [row["mean_size"], 4]}
    assert calls == [1]
    for returned, words in (({"mse": 1.0}, "names that the table does not have yet, got 'mse'"), ({"x": {1}}, "JSON")):
        with pytest.warns(TrainingWarning, match=words):
            run(parts, [design.guarantee], **options | {"test": lambda *given, returned=returned: returned})


@pytest.mark.skipif(has_gpu(), reason="groups share the GPU of this machine")
def test_an_experiment_with_jobs_runs_on_a_machine_without_a_gpu(pretended, parts, guarantees, tmp_path):
    done = run(parts, guarantees, tmp_path, settings={"plain": {}}, seeds=[0])
    wanted = {"plain": {"guarantees": guarantees}}
    found = train_all({"walks": parts}, wanted, at_once=2, out=tmp_path)
    assert [row["design"] for row in found.rows] == [row["design"] for row in done.rows]


def make_nested():
    def nested(design, recording):
        return {}

    return nested


def test_wrong_arguments_are_named(parts, guarantees):
    with pytest.raises(ValueError, match="settings 'plain' must have names among .*num_updates.*; got 'updates'"):
        run(parts, guarantees, settings={"plain": {"updates": 3}})
    with pytest.raises(ValueError, match="filter_size of settings 'plain' must have at least one value"):
        run(parts, guarantees, settings={"plain": {"filter_size": []}})
    with pytest.raises(ValueError, match="recordings of settings 'plain' must be among"):
        run(parts, guarantees, settings={"plain": {"recordings": ["other"]}})
    with pytest.raises(ValueError, match="guarantees, seeds and settings must each have at least one entry"):
        run(parts, [])
    with pytest.raises(ValueError, match="gpus must be 0 on a machine without a GPU, got 1.0"):
        run(parts, guarantees, gpus=1.0)
    with pytest.raises(TypeError, match="test must be a function of a design and a recording, got 'mse'"):
        run(parts, guarantees, test="mse")
    for nested in (lambda design, recording: {}, make_nested()):
        with pytest.raises(ValueError, match="test must be a function at the top of a module, or use workers=0, got"):
            run(parts, guarantees, test=nested, workers=1)
    with pytest.raises(TypeError, match="a recording must be Trajectories, a path, or three of them"):
        run(parts[:2], guarantees)


def test_settings_objects_and_their_fields_can_be_mixed():
    (setting,) = expand_settings(
        {"mixed": {"optimisation": dpfuse.Optimisation(num_updates=7), "learning_rate": 0.5, "ppo": {"clip": 0.1}}}
    )
    assert setting.options["optimisation"] == dpfuse.Optimisation(num_updates=7, learning_rate=0.5)
    assert setting.options["ppo"] == dpfuse.PPO(clip=0.1)
    assert setting.options["architecture"] == dpfuse.Architecture()


def test_a_file_in_the_folder_that_is_not_ours_is_refused(pretended, parts, guarantees, tmp_path):
    run(parts, guarantees[:1], tmp_path / "out")
    path = next((tmp_path / "out/groups").iterdir())
    path.write_text(json.dumps({"version": 99, "designs": {}}))
    with pytest.raises(FileRefused, match="has version 99, this is 1; use another folder"):
        run(parts, guarantees[:1], tmp_path / "out")
    path.write_text("{")
    with pytest.raises(FileRefused, match="is not a file of a sweep; delete it"):
        run(parts, guarantees[:1], tmp_path / "out")


def test_reports_come_back_without_loss(guarantees):
    for guarantee in (guarantees[0], None):
        report = pretend_report(guarantee, 3)
        there = report_to_dict(report)
        back = report_from_dict(json.loads(json.dumps(there)))
        assert report_to_dict(back) == there
        assert dpfuse.compare(back, report).ratio == 1.0


def test_tables_have_one_row_a_design_and_one_a_mean_over_seeds(pretended, parts, guarantees, tmp_path):
    result = run(parts, guarantees, tmp_path / "out", settings={"plain": {}})
    assert [path.name for path in result.save_tables()] == [
        "table.csv",
        "table.parquet",
        "summary.csv",
        "summary.parquet",
    ]
    with (tmp_path / "out/table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(result.to_frame()) == 8
    assert float(rows[0]["mse"]) == result.reports[0].mse and rows[-1]["budget"] == ""
    first = result.summary()[0]
    own = [report.mse for report in result.select(budget=0.5, accounting="total").reports]
    assert first["num_seeds"] == 2 and first["mse"] == pytest.approx(np.mean(own))
    assert first["seed_std"] == pytest.approx(np.std(own, ddof=1))
    assert first["mse_low"] < first["mse"] < first["mse_high"]
    assert "0.5 at order 2, remove-one, individual | 2 |" in result.to_text()
    assert result.designs()[0].fingerprint == dpfuse.load(result.rows[0]["design"]).fingerprint
    with pytest.raises(ValueError, match="columns must be among those of the table"):
        result.select(bugdet=0.5)


def test_figures_show_error_seeds_and_price(pretended, parts, guarantees):
    drawn = run(parts, guarantees, settings={"plain": {}}).figures()
    assert list(drawn) == ["error-against-budget", "seeds", "price-of-privacy"]
    lines = drawn["price-of-privacy"].axes[0].get_lines()
    (total,) = (line for line in lines if line.get_label() == "plain, remove-one, total")
    floor = np.mean([pretend_report(None, seed).mse for seed in (0, 1)])
    prices = [np.mean([pretend_report(g, seed).mse for seed in (0, 1)]) / floor for g in guarantees[:2]]
    assert total.get_xdata().tolist() == [0.5, 1.5]
    assert total.get_ydata() == pytest.approx(prices)
