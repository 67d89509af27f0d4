"""Evaluation: coverage of intervals, spending in integers, reports as text and JSON."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import polars
import pytest

import dpfuse
from dpfuse.evaluation import LEVELS, bootstrap, figures, to_text
from dpfuse.evaluation.bootstrap import block_interval, blocks_of
from dpfuse.evaluation.debits import exact_spending
from dpfuse.evaluation.report import _quarters
from dpfuse.evaluation.simulate import simulate_windows
from dpfuse.policy import step
from dpfuse.privacy.statement import NO_GUARANTEE, state_guarantee
from dpfuse.trajectories import Trajectories
from support.designs import busy_data, departing, make_design, make_guarantee, with_networks

HORIZON = 6


def recordings(num_states=1, seed=0, **options):
    """Ten independent recordings, in which sensors come and go."""
    return busy_data(num_runs=10, num_steps=20, num_states=num_states, seed=seed, **options)


@pytest.fixture(scope="module")
def reports(designs):
    """Reports on two designs, on the same windows."""
    kinds = {"classical": ("total", "remove-one", "ball"), "individual": ("individual", "remove-one", "ball")}
    return {name: dpfuse.evaluate(designs[kind], recordings(), num_draws=2) for name, kind in kinds.items()}


class TestIntervals:
    """Windows of 10 steps, 5 apart, on recordings in which neighbouring steps have a correlation of 0.9."""

    NUM_RUNS, NUM_STEPS, LENGTH, STRIDE, NUM_TRIALS, CORRELATION = 4, 600, 10, 5, 200, 0.9

    @pytest.fixture
    def windows(self, monkeypatch):
        monkeypatch.setattr(bootstrap, "_NUM_RESAMPLES", 500)  # enough for a quantile of 2.5%
        shape = self.NUM_RUNS, self.NUM_STEPS
        data = Trajectories(state=np.zeros((*shape, 1)), measurements=np.zeros((*shape, 1, 1)))
        return data.windows(self.LENGTH, self.STRIDE)

    def window_means(self, windows, rng, num_trials):
        """Window means of stationary series with mean 1, shape (trials, windows)."""
        steps = rng.normal(size=(self.NUM_STEPS, num_trials, self.NUM_RUNS))
        steps[1:] *= math.sqrt(1 - self.CORRELATION**2)
        for k in range(1, self.NUM_STEPS):
            steps[k] += self.CORRELATION * steps[k - 1]
        means = [steps[start : start + self.LENGTH, :, run].mean(0) for run, start in windows.origins]
        return 1 + np.stack(means, axis=1)

    def coverage(self, windows, blocks, num_trials):
        """How often the 95% interval contains the true mean."""
        trials = self.window_means(windows, np.random.default_rng(0), num_trials)
        intervals = [block_interval(values[:, None], blocks, lambda means: means[:, 0]) for values in trials]
        return np.mean([low <= 1 <= high for low, high in intervals])

    def test_95_percent_intervals_cover_the_mean_95_percent_of_the_time(self, windows):
        """Tolerance: 3% for the finite number of blocks, and 4.9 standard deviations of a count (false alarm 1e-6)."""
        allowed = 0.03 + 4.9 * math.sqrt(0.95 * 0.05 / self.NUM_TRIALS)
        blocks = blocks_of(windows, 6 * self.LENGTH)
        assert blocks.max() + 1 == self.NUM_RUNS * self.NUM_STEPS / (6 * self.LENGTH)
        assert abs(self.coverage(windows, blocks, self.NUM_TRIALS) - 0.95) < allowed

    def test_intervals_from_single_windows_are_too_narrow(self, windows):
        """Negative control: the test above would fail."""
        allowed = 0.03 + 4.9 * math.sqrt(0.95 * 0.05 / self.NUM_TRIALS)
        assert self.coverage(windows, np.arange(windows.num_runs), num_trials=50) < 0.95 - allowed

    def test_equal_designs_differ_significantly_one_time_in_twenty(self, windows):
        """Both designs share a part of their errors, and each adds noise of its own; tolerance as above."""
        rng, blocks, alarms = np.random.default_rng(1), blocks_of(windows, 6 * self.LENGTH), 0
        shared, *own = (self.window_means(windows, rng, self.NUM_TRIALS) for _ in range(3))
        for pair in np.stack([5 + 3 * shared + 0.3 * noise for noise in own], axis=2):
            low, high = block_interval(pair, blocks, lambda means: means[:, 0] / means[:, 1])
            alarms += not low <= 1 <= high
        assert abs(alarms / self.NUM_TRIALS - 0.05) < 0.03 + 4.9 * math.sqrt(0.95 * 0.05 / self.NUM_TRIALS)

    def test_a_block_is_an_interval_of_one_recording(self):
        windows = Trajectories(state=np.zeros((2, 40, 1)), measurements=np.zeros((2, 40, 1, 1))).windows(5, 5)
        assert blocks_of(windows, 20).tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
        independent = Trajectories(state=np.zeros((6, 5, 1)), measurements=np.zeros((6, 5, 1, 1)))
        assert blocks_of(independent, 20).tolist() == list(range(6))

    def test_too_few_blocks_give_no_interval(self):
        values, blocks = np.random.default_rng(0).normal(size=(40, 1)), np.arange(40) // 5
        assert block_interval(values, blocks, lambda means: means[:, 0]).shape == (2,)
        assert block_interval(values[:35], blocks[:35], lambda means: means[:, 0]) is None


class TestComparisons:
    def test_a_design_compared_with_itself_has_ratio_one(self, reports):
        comparison = dpfuse.compare(reports["classical"], reports["classical"])
        assert comparison == (1.0, (1.0, 1.0), 0.0, (0.0, 0.0))

    def test_half_the_error_gives_ratio_one_half(self, reports):
        report = reports["classical"]
        better = replace(report, mse=report.mse / 2, window_errors=report.window_errors / 2)
        comparison = dpfuse.compare(better, report)
        assert comparison.ratio == 0.5
        assert comparison.ci95 == pytest.approx((0.5, 0.5))
        assert comparison.difference_ci95[0] < comparison.difference < comparison.difference_ci95[1] < 0

    def test_reports_on_other_windows_are_not_compared(self, reports):
        report = reports["classical"]
        other = replace(report, origins=[window._replace(start=window.start + 1) for window in report.origins])
        with pytest.raises(ValueError, match="must come from the same windows; evaluate both on the same test data"):
            dpfuse.compare(other, reports["classical"])


class TestSpending:
    @pytest.mark.parametrize("departure", [0.0, 100.0])
    @pytest.mark.parametrize("case", [("total", "replace-one", "box"), ("individual", "replace-one", "ball")])
    def test_spending_agrees_with_python_integers(self, designs, case, departure):
        design = designs[case]
        design = replace(design, policy=departing(design.policy, departure))
        [batch] = simulate_windows(design, recordings().windows(HORIZON, 7), num_draws=1, seed=0)
        found = exact_spending(design, batch.windows, batch.result)
        factor, grid = design.structure.charge_factor, 2**20
        totals, per_step = {}, np.zeros(HORIZON)
        if case[0] == "total":
            for (k, window), weight in np.ndenumerate(batch.result.fusion_weight):
                cost = factor * math.floor(float(weight) * grid) ** 2
                totals[window] = totals.get(window, 0) + cost
                per_step[k] += cost / len(batch.numbers)
        else:
            sensor = np.zeros(batch.windows.present.shape[1], int)
            for k, row in np.ndindex(batch.windows.present.shape):
                sensor[row] += batch.windows.arrived[k, row]
                entries = [math.trunc(float(entry) * grid) for entry in batch.result.contributions[k, row]]
                cost = factor * sum(entry * entry for entry in entries)
                totals[row, sensor[row]] = totals.get((row, sensor[row]), 0) + cost
                per_step[k] += cost / batch.windows.present[k].sum()
        assert found.largest == max(totals.values())
        np.testing.assert_allclose(found.per_step, design.guarantee.order * per_step / (2 * grid**2), rtol=1e-9)
        assert found.largest <= 2 * design.guarantee.budget / design.guarantee.order * grid**2

    def test_reports_show_the_largest_spending_and_the_budget(self, reports):
        for report in reports.values():
            assert report.within_budget
            assert 0 < report.budget_spent_max <= report.guarantee.budget
            assert report.budget_per_step.shape == (HORIZON,)
        # With one account for the stream what is spent at each step adds up to the budget.
        assert reports["classical"].budget_per_step.sum() == pytest.approx(1.5, rel=1e-3)

    def test_a_design_that_overspends_is_reported(self, monkeypatch):
        """Negative control: the float accounts use twice the budget of the guarantee."""
        monkeypatch.setattr(step, "usable_budget", lambda policy: 2 * policy.constants.squared_radius)
        report = dpfuse.evaluate(make_design(horizon=5), recordings(), num_draws=1)
        assert not report.within_budget
        assert report.budget_spent_max == pytest.approx(3.0, rel=1e-3)


class TestErrors:
    @pytest.fixture
    def idle(self):
        """A design whose estimator returns the mean and deviation of the training data."""
        design = make_design(num_states=2)
        return replace(design, policy=with_networks(design.policy, lambda leaf, rng: 0 * leaf))

    def test_a_constant_estimator_has_the_error_of_the_prior(self, idle):
        data = recordings(num_states=2)
        report = dpfuse.evaluate(idle, data, num_draws=1)
        windows = data.windows(HORIZON, 1)
        squared = (windows.state - np.array([1, 2])) ** 2
        assert report.mse == pytest.approx(squared.mean(), rel=1e-5)
        assert report.prior_mse == pytest.approx(squared.mean(), rel=1e-5)
        np.testing.assert_allclose(report.mse_per_step, squared.mean((0, 2)), rtol=1e-5)
        np.testing.assert_allclose(report.window_errors, squared.mean((1, 2)), rtol=1e-5)
        inside = squared <= (1.959964 * 2 * (math.log(2) + 1e-3)) ** 2
        assert report.coverage == pytest.approx(inside.mean(), abs=1e-3)
        assert report.ci95[0] < report.mse < report.ci95[1]
        assert (report.ci95_per_step[0] < report.mse_per_step).all()
        assert (report.mse_per_step < report.ci95_per_step[1]).all()

    def test_equal_seeds_give_equal_reports(self, designs, reports):
        again = dpfuse.evaluate(designs["total", "remove-one", "ball"], recordings(), num_draws=2)
        assert again.mse == reports["classical"].mse
        other = dpfuse.evaluate(designs["total", "remove-one", "ball"], recordings(), num_draws=2, seed=1)
        assert other.mse != reports["classical"].mse
        assert other.mse == pytest.approx(again.mse, rel=0.2)

    @pytest.mark.slow
    def test_windows_start_a_stride_apart(self, designs):
        design = designs["total", "remove-one", "ball"]
        report = dpfuse.evaluate(design, recordings(), stride=7, num_draws=1)
        assert report.window_errors.shape == (10 * 3,)
        assert report.blocks.tolist() == [block for block in range(10) for _ in range(3)]
        assert [window.start for window in report.origins] == [0, 7, 14] * 10

    def test_windows_of_several_batches_are_all_evaluated(self, designs):
        """More windows than one batch holds, and a last batch that is not full."""
        design, data = designs["total", "remove-one", "ball"], recordings()
        whole = dpfuse.evaluate(design, data, stride=1, num_draws=1)
        assert whole.window_errors.shape == (150,)
        assert (whole.window_errors > 0).all()
        assert whole.mse == pytest.approx(whole.window_errors.mean())
        assert whole.mse_per_step.mean() == pytest.approx(whole.mse, rel=1e-6)

    @pytest.mark.slow
    def test_a_trained_design_is_better_than_the_prior(self, trained, walks):
        report = dpfuse.evaluate(trained, walks[2])
        assert report.mse < 0.4 * report.prior_mse
        assert 0.8 < report.coverage < 1
        assert report.within_budget
        assert dpfuse.evaluate(trained, walks[1]).mse == pytest.approx(trained.training["validation_mse"], rel=0.2)

    @pytest.mark.slow
    def test_a_single_run_has_an_error_but_no_interval(self, designs):
        report = dpfuse.evaluate(designs["total", "remove-one", "ball"], recordings().runs([0]))
        assert report.ci95 is None and report.ci95_per_step is None and report.mse > 0
        assert dpfuse.compare(report, report) == (1.0, None, 0.0, None)

    def test_the_non_private_floor_spends_nothing(self):
        floor = make_design(features="unbounded", spending="constant")
        report = dpfuse.evaluate(floor, recordings(), num_draws=1)
        assert (report.guarantee, report.budget_per_step, report.budget_spent_max) == (None, None, None)
        assert report.within_budget is None and dict(report.epsilon) == {}
        assert report.statement == NO_GUARANTEE

    @pytest.mark.slow
    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_data_without_sensors_can_be_evaluated(self, designs, accounting):
        data = recordings()
        empty = replace(data, present=np.zeros_like(data.present))
        report = dpfuse.evaluate(designs[accounting, "remove-one", "ball"], empty, num_draws=1)
        assert math.isfinite(report.mse) and report.within_budget

    @pytest.mark.slow
    def test_a_stationary_design_runs_over_whole_recordings(self):
        design = make_design("individual", horizon=None, expected_stay=5.0)
        report = dpfuse.evaluate(design, recordings(), num_draws=1)
        assert report.mse_per_step.shape == (20,) and report.within_budget
        assert "for as long as the design runs" in report.statement

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_steps": 5}, "num_steps must be the design's horizon, 6, got 5"),
            ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
            ({"num_draws": 0}, "num_draws must be at least 1, got 0"),
            ({"stride": 0}, "stride must be at least 1, got 0"),
            ({"delta": 2.0}, "delta must be in"),
        ],
    )
    def test_wrong_options_are_refused(self, designs, options, message):
        with pytest.raises(ValueError, match=message):
            dpfuse.evaluate(designs["total", "remove-one", "ball"], recordings(), **options)

    @pytest.mark.parametrize("changes", [{"num_states": 2}, {"num_channels": 1}, {"num_channels": 3}])
    def test_data_with_other_states_or_channels_are_refused(self, designs, changes):
        with pytest.raises(ValueError, match="channels|states"):
            dpfuse.evaluate(designs["total", "remove-one", "ball"], recordings(**changes))


class TestReports:
    def test_a_report_can_be_written_as_json(self, reports):
        for report in reports.values():
            answer = json.loads(json.dumps(report.to_dict(), allow_nan=False))
            assert answer["mse"] == report.mse
            assert len(answer["mse_per_step"]) == len(answer["budget_per_step"]) == HORIZON
            assert answer["guarantee"]["budget"] == 1.5
            assert answer["epsilon"]["gdp"] == pytest.approx(5.545, abs=1e-3)
            assert answer["num_windows"] == len(report.window_errors)

    def test_the_table_has_a_row_for_each_design_and_one_for_the_prior(self, reports):
        comparison = dpfuse.compare(reports["individual"], reports["classical"])
        table = to_text(reports, {"individual": comparison}, "classical").splitlines()
        assert len(table) == 5
        assert len({line.count("|") for line in table}) == 1
        assert "error / classical" in table[0]
        assert table[2].startswith("| classical |") and table[3].startswith("| individual |")
        assert f"{reports['classical'].mse:.4g}" in table[2]
        assert f"{comparison.ratio:.3f}" in table[3]
        assert f"{reports['classical'].prior_mse:.4g}" in table[4]
        assert len(to_text(reports).splitlines()) == 5

    def test_the_text_tells_how_the_validation_error_fell(self, reports):
        assert _quarters([8.0, 9.0, 4.0, 5.0, 3.0, 2.0, 2.5, 2.6]) == [8, 4, 2, 2]
        assert _quarters([8.0, 9.0, 4.0]) == []
        told = replace(reports["classical"], validation_quarters=(8.0, 4.0, 2.0, 2.0))
        text = to_text({"classical": told, "individual": reports["individual"]})
        assert text.endswith("100% of the updates:\n- classical: 8, 4, 2, 2")
        assert told.to_dict()["validation_quarters"] == [8, 4, 2, 2]

    def test_a_report_states_the_guarantee_of_its_design(self, reports):
        for name, accounting in [("classical", "total"), ("individual", "individual")]:
            expected = state_guarantee(make_guarantee(accounting), horizon=HORIZON, dimension=2).to_text()
            assert reports[name].statement == expected

    @pytest.mark.slow
    def test_figures_are_written_as_png(self, designs, reports, tmp_path):
        chosen = {"classical": designs["total", "remove-one", "ball"], "box": designs["total", "replace-one", "box"]}
        paths = figures.save_figures(
            {
                "traffic": figures.plot_recording(recordings(), state_name="density"),
                "one-channel": figures.plot_recording(recordings(num_channels=1)),
                "estimates": figures.plot_estimates(chosen, recordings(), duration_s=30.0),
                "budget": figures.plot_budget(reports),
                "error": figures.plot_error(reports),
                "error-budget": figures.plot_error_against_budget({"both": list(reports.values())}),
                "calibration": figures.plot_calibration(reports),
                "seeds": figures.plot_seeds({name: [report, report] for name, report in reports.items()}),
            },
            tmp_path / "deep" / "figures",
        )
        names = ["traffic", "one-channel", "estimates", "budget", "error", "error-budget", "calibration", "seeds"]
        assert [path.stem for path in paths] == names
        for path in paths:
            assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000

    @pytest.mark.slow
    def test_estimates_of_every_coordinate_are_drawn(self):
        design = make_design(num_states=2, spread=0.5)
        drawn = figures.plot_estimates(
            {"a": design, "b": design}, recordings(num_states=2), state_name=["load", "cars"]
        )
        assert [axis.get_ylabel() for axis in drawn.axes] == ["load", "cars"] * 2
        truth = recordings(num_states=2).state[0, :18]
        for number, axis in enumerate(drawn.axes):
            np.testing.assert_array_equal(axis.lines[0].get_ydata(), truth[:, number % 2])

    @pytest.mark.parametrize(
        ("interval_s", "unit", "last"), [(0.2, "s", 1.2), (300, "min", 30), (7200, "h", 12), (172800, "days", 12)]
    )
    def test_time_axes_have_the_unit_of_the_horizon(self, reports, interval_s, unit, last):
        slow = {"a": replace(reports["classical"], interval_s=interval_s)}
        for figure in (figures.plot_error(slow), figures.plot_budget(slow)):
            (axis,) = figure.axes
            assert axis.get_xlabel() == f"time [{unit}]" and axis.lines[0].get_xdata()[-1] == pytest.approx(last)

    def test_error_against_budget_shows_means_over_seeds_and_levels_without_guarantee(self, reports):
        first, second = reports.values()
        floor = replace(first, guarantee=None, mse=1.0)
        (axis,) = figures.plot_error_against_budget({"a": [first, second, floor]}).axes
        labels = {line.get_label(): line.get_ydata() for line in axis.lines}
        np.testing.assert_allclose(labels["a"], (first.mse + second.mse) / 2)
        np.testing.assert_allclose(labels["a (no guarantee)"], 1.0)
        np.testing.assert_allclose(labels["no releases (prior)"], first.prior_mse)


class TestTables:
    @pytest.mark.parametrize("package", ["polars", "pandas"])
    def test_a_report_is_a_data_frame_with_a_row_for_each_step(self, reports, package, monkeypatch):
        if package == "pandas":
            monkeypatch.setitem(sys.modules, "polars", None)
        frame = reports["classical"].to_frame()
        assert type(frame).__module__.startswith(package)
        assert list(frame.columns) == ["step", "time_s", "mse", "mse_low", "mse_high", "budget"]
        np.testing.assert_array_equal(frame["mse"], reports["classical"].mse_per_step)
        row = dpfuse.compare(reports["individual"], reports["classical"]).to_frame()
        assert list(row.columns)[:3] == ["ratio", "ratio_low", "ratio_high"] and len(row) == 1

    def test_without_polars_and_pandas_the_remedy_is_named(self, reports, monkeypatch):
        for package in ("polars", "pandas"):
            monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(dpfuse.MissingExtra, match="pip install polars"):
            reports["classical"].to_frame()

    @pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
    def test_files_hold_the_same_numbers(self, reports, kind, tmp_path):
        report, path = reports["classical"], tmp_path / "new" / f"report.{kind}"
        report.save(path)
        read = {"csv": polars.read_csv, "json": polars.read_json, "parquet": polars.read_parquet}[kind](path)
        assert read.to_dict(as_series=False) == report.to_columns()

    def test_another_kind_of_file_is_refused(self, reports, tmp_path):
        with pytest.raises(ValueError, match="path must end with .csv, .json or .parquet, got 'report.xls'"):
            dpfuse.compare(*reports.values()).save(tmp_path / "report.xls")

    def test_a_row_has_no_interval_where_there_is_none(self, reports):
        assert replace(reports["classical"], ci95=None).to_row()["mse_low"] is None


class TestCalibration:
    def test_shares_are_those_of_the_intervals_of_each_level(self, designs):
        """Recomputed from the rollouts, and increasing with the level."""
        design, test = designs["total", "remove-one", "ball"], recordings()
        report = dpfuse.evaluate(design, test, num_draws=1)
        inside = {level: [] for level in LEVELS}
        for _, windows, result in simulate_windows(design, test.windows(HORIZON, 1), num_draws=1, seed=0):
            away = np.abs(result.mean - windows.state) / result.std
            for level in LEVELS:
                inside[level].append(away <= NormalDist().inv_cdf((1 + level) / 2))
        for level, share in report.calibration.items():
            assert share == pytest.approx(np.mean(np.concatenate(inside[level], axis=1)), abs=1e-6)
        assert list(report.calibration.values()) == sorted(report.calibration.values())
        assert report.calibration[0.95] == report.coverage
