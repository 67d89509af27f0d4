"""Faults of live streams in recorded windows: each does what its name says, and none adds anything."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest

import dpfuse
from dpfuse.policy.faults import FAULTS, with_fault, with_random_faults
from dpfuse.policy.rollout import cut, draw_noise, pad_rows, rollout
from support.designs import busy_data, make_design

DATA = busy_data(num_runs=40, num_steps=12, num_slots=6, seed=2)
WINDOWS = pad_rows(cut(DATA, np.arange(40), np.zeros(40, int), 12), 512)


def faulty(name):
    return with_fault(WINDOWS, name, np.random.default_rng(0), 2)


class TestNamedFaults:
    @pytest.mark.parametrize("name", FAULTS)
    def test_a_fault_adds_no_report_and_changes_no_measurement(self, name):
        windows = faulty(name)
        assert not (windows.present & ~WINDOWS.present).any()
        for field in ("state", "arrived", "window", "account_share"):
            assert (getattr(windows, field) == getattr(WINDOWS, field)).all()
        assert (windows.measurements == WINDOWS.measurements).all() == (name != "glitches")

    def test_glitches_change_a_tenth_of_the_reports_within_their_range_and_nothing_else(self):
        attributes = np.full((*WINDOWS.present.shape, 1), 7.0, np.float32)
        missing = WINDOWS.measurements.copy()
        missing[3, :, 1] = np.nan
        given = WINDOWS._replace(measurements=np.concatenate([missing, attributes], axis=-1))
        windows = with_fault(given, "glitches", np.random.default_rng(0), 2)
        assert (windows.measurements[..., 2] == 7).all() and (windows.present == given.present).all()
        assert (np.isnan(windows.measurements) == np.isnan(given.measurements)).all()
        changed = (windows.measurements[..., 0] != given.measurements[..., 0])[given.present]
        # Of some 2,000 reports: 0.03 is four standard deviations or more.
        assert abs(changed.mean() - 0.1) < 0.03
        before, after = given.measurements[given.present][:, 0], windows.measurements[windows.present][:, 0]
        assert before.min() <= after.min() and after.max() <= before.max()

    def test_every_other_step_is_skipped_and_nobody_is_present_then(self):
        windows = faulty("skipped")
        assert windows.skipped[1::2].all() and not windows.skipped[::2].any()
        assert not windows.present[1::2].any() and (windows.present[::2] == WINDOWS.present[::2]).all()

    @pytest.mark.parametrize(
        ("name", "share"), [("silent", 0.5), ("all-silent", 0.0), ("thinned", 1 / 3), ("share-10", 0.1)]
    )
    def test_that_share_of_the_reports_is_left(self, name, share):
        """Of some 800 rows: off by 5 standard deviations, 0.09, once in a million."""
        windows, late = faulty(name), slice(4, None)
        left = windows.present[late].sum() / WINDOWS.present[late].sum()
        assert abs(left - share) < 0.15 and (left == 0) == (share == 0)
        if "silent" in name:
            assert (windows.present[:4] == WINDOWS.present[:4]).all()

    @pytest.mark.slow
    def test_a_reader_who_joins_late_has_the_estimates_of_a_fresh_estimator(self):
        """From the step of joining on they are those of an E that starts there; before, those of the centre's own."""
        policy = make_design(horizon=12, spread=0.5).policy
        run = eqx.filter_jit(rollout)
        noise = draw_noise(policy.structure, WINDOWS, jax.random.key(0))
        whole, late = run(policy, WINDOWS, noise), run(policy, faulty("joined"), noise)
        np.testing.assert_array_equal(late.mean[:4], whole.mean[:4])
        assert (np.abs(late.mean[4] - whole.mean[4]) > 1e-4).mean() > 0.9
        np.testing.assert_allclose(late.fusion_weight, whole.fusion_weight, rtol=1e-5)


class TestRandomFaults:
    def test_no_share_means_no_fault(self):
        windows = with_random_faults(WINDOWS, 0.0, np.random.default_rng(0), 2)
        assert (windows.present == WINDOWS.present).all() and not windows.skipped.any() and not windows.joined.any()

    def test_about_the_given_share_of_the_windows_has_one(self):
        """A fault may by chance concern nobody, so fewer than the share can be seen."""
        num_seen = 0
        for seed in range(20):
            windows = with_random_faults(WINDOWS, 0.5, np.random.default_rng(seed), 2)
            changed = (windows.present != WINDOWS.present).any(0)
            changed |= (windows.measurements != WINDOWS.measurements).any((0, 2))
            of_window = np.bincount(WINDOWS.window[changed], minlength=41)[:40] > 0
            num_seen += (of_window | windows.skipped.any(0) | (windows.joined > 0)).sum()
        assert 0.3 < num_seen / 800 < 0.55

    def test_nobody_is_present_in_a_skipped_step(self):
        windows = with_random_faults(WINDOWS, 1.0, np.random.default_rng(1), 2)
        window = np.minimum(WINDOWS.window, 39)
        assert windows.skipped.any() and not (windows.present & windows.skipped[:, window]).any()


@pytest.mark.slow
def test_evaluation_under_a_fault_stays_within_the_budget():
    design = make_design("individual", horizon=12, spread=0.5)
    for name in FAULTS:
        report = dpfuse.evaluate(design, DATA, fault=name, num_draws=1)
        assert report.within_budget and np.isfinite(report.mse)
    with pytest.raises(ValueError, match="fault must be one of skipped, silent"):
        dpfuse.evaluate(design, DATA, fault="flood")
