"""Public inputs: held with their age, read by g, E and the guidance, and no part of a design that has none."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

import dpfuse
from dpfuse import Trajectories
from dpfuse.policy.recordings import check_recording
from dpfuse.policy.rollout import close_loop, cut, draw_noise, encode_sensors, rollout
from dpfuse.policy.step import estimate, init_public, observe
from dpfuse.public_inputs import NEVER, clock_inputs, hold
from support.designs import BRIEF, SMALL, busy_data, make_design, make_guarantee


def with_public(data: Trajectories, num_inputs=2, share=0.5, seed=0) -> Trajectories:
    rng = np.random.default_rng(seed)
    public = rng.uniform(-1.5, 1.5, size=(*data.state.shape[:2], num_inputs))
    return replace(data, public=np.where(rng.random(public.shape) < share, public, np.nan))


def test_the_last_one_is_held_with_its_age():
    given = np.array([np.nan, 3.0, np.nan, np.inf, 5.0, np.nan], np.float32)[None, :, None]
    values, ages = hold(given)
    np.testing.assert_array_equal(values[0, :, 0], [np.nan, 3, 3, 3, 5, 5])
    assert ages[0, :, 0].tolist() == [NEVER, 0, 1, 2, 0, 1]


def test_windows_and_parts_keep_what_was_published_before_them(tmp_path):
    data = with_public(busy_data(num_steps=6))
    for part, first in ((data.between(2, 6), 2), (data.windows(4, 1).runs([2]), 2)):
        np.testing.assert_array_equal(part.public[0], data.public[0, first : first + 4])
        np.testing.assert_array_equal(part.public_age[0], data.public_age[0, first : first + 4])
    data.save(tmp_path / "data")
    for other in (Trajectories.load(tmp_path / "data"), Trajectories.join([data])):
        np.testing.assert_array_equal(other.public, data.public)
        np.testing.assert_array_equal(other.public_age, data.public_age)
    windows = cut(data, np.array([1]), np.array([2]), 3)
    np.testing.assert_array_equal(windows.public[:, 0, :2], data.public[1, 2:5])
    np.testing.assert_array_equal(windows.public[:, 0, 2:], data.public_age[1, 2:5])
    with pytest.raises(ValueError, match="for all parts or for none"):
        Trajectories.join([data, busy_data(num_steps=6)])
    with pytest.raises(ValueError, match=r"public must have shape \(N, K, n_p\)"):
        replace(data, public=np.zeros((1, 2, 3)), public_age=None)


@pytest.mark.slow
def test_networks_read_values_in_range_and_ages():
    policy = make_design(num_public=2, public_range=(-1.0, 3.0)).policy
    public, weight, released = init_public(policy, 1), np.ones(1, np.float32), np.zeros((1, 2), np.float32)
    assert observe(policy, public).shape == (1, policy.structure.num_observed)

    def read(held, **options):
        after, _ = estimate(policy, public, weight, released, published=np.array([held], np.float32), **options)
        return np.asarray(after.last)[0, -4:], np.asarray(after.held)[0]

    np.testing.assert_allclose(read([1.0, 9.0, 0.0, 1.0])[0], [0.0, 1.0, 0.0, 1 / 16])
    np.testing.assert_allclose(read([np.nan, -1.0, NEVER, 3.0])[0], [0.0, -1.0, 1.0, 2 / 16])
    skipped, held = read([1.0, 1.0, 0.0, 0.0], skipped=np.array([True]))
    np.testing.assert_allclose(skipped, [0.0, 0.0, 1.0, 1.0])  # a skipped step has no row, and so no inputs
    assert np.isnan(held[:2]).all() and (held[2:] == NEVER).all()


def test_a_skipped_step_makes_the_last_inputs_one_step_older():
    policy = make_design(num_public=1).policy
    weight, released = np.ones(1, np.float32), np.zeros((1, 2), np.float32)
    public, _ = estimate(policy, init_public(policy, 1), weight, released, published=np.array([[0.5, 2.0]], np.float32))
    for age in (3.0, 4.0):
        public, _ = estimate(policy, public, 0 * weight, released, True, np.array([[0.9, 0.0]], np.float32))
        assert np.asarray(public.held)[0].tolist() == [0.5, age]


@pytest.mark.slow
@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_g_e_and_guided_features_follow_them_from_the_next_step_on_and_nothing_before(accounting):
    """E reads the inputs of its own step; g and the guidance those of the step before."""
    design = make_design(accounting, spread=0.5, num_public=2)
    data = with_public(busy_data(num_runs=1), share=1.0)
    changed = replace(data, public=data.public + (np.arange(6) >= 3)[:, None], public_age=None)
    noise, results = None, []
    for each in (data, changed):
        windows = cut(each, np.array([0]), np.array([0]), 6)
        noise = draw_noise(design.structure, windows, jax.random.key(0)) if noise is None else noise
        results.append(rollout(design.policy, windows, noise))
    before, after = results
    assert (before.mean[:3] == after.mean[:3]).all() and (before.mean[3] != after.mean[3]).all()
    assert (before.fusion_weight[:4] == after.fusion_weight[:4]).all()
    assert (before.fusion_weight[4:] != after.fusion_weight[4:]).any()
    assert (before.contributions[:4] == after.contributions[:4]).all()
    assert (before.contributions[4:] != after.contributions[4:]).any()


@pytest.mark.slow
def test_a_design_without_them_does_not_read_them_and_is_what_it_was():
    design, data = make_design(spread=0.5), busy_data()
    plain, with_them = (cut(each, np.arange(3), np.zeros(3, int), 6) for each in (data, with_public(data)))
    noise = draw_noise(design.structure, plain, jax.random.key(0))
    one = rollout(design.policy, plain, noise)
    other = close_loop(design.policy, encode_sensors(design.policy, with_them), noise)
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(one, other, strict=True))
    assert "public" not in repr(design.structure) and design.structure.num_estimator_inputs == 8
    check_recording(design.structure, with_public(data), "test")


def test_a_recording_without_them_is_refused(tmp_path):
    design = make_design(num_public=2)
    with pytest.raises(ValueError, match="test must have the 2 public inputs that the design reads, got 0"):
        dpfuse.evaluate(design, busy_data())
    design.save(tmp_path / "design")
    assert dpfuse.load(tmp_path / "design").fingerprint == design.fingerprint


def test_time_of_day_and_week_repeat():
    monday = 4 * 86400  # 5 January 1970
    inputs = clock_inputs([monday, monday + 7 * 86400], 48, 3600.0)
    assert inputs.shape == (2, 48, 4)
    np.testing.assert_allclose(inputs[0], inputs[1], atol=1e-5)
    np.testing.assert_allclose(inputs[0, 0], [0, 1, 0, 1], atol=1e-6)
    np.testing.assert_allclose(inputs[0, 6, :2], [1, 0], atol=1e-6)
    np.testing.assert_allclose(inputs[0, :24, :2], inputs[0, 24:, :2], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pathwise", "ppo"])
def test_a_design_learns_what_the_inputs_tell(method):
    """The input is the state itself, every other step: the error is then far below the prior's at a tiny budget."""
    rng = np.random.default_rng(0)
    state = rng.normal(size=(300, 1, 1)) + 0.2 * rng.normal(size=(300, 8, 1)).cumsum(1)
    public = np.where(np.arange(8)[:, None] % 2 == 0, state, np.nan)
    data = Trajectories(state, 0.1 * rng.normal(size=(300, 8, 3, 1)), public=public)
    training, validation, test = data.split(by="run")
    options = {"method": method, "architecture": SMALL, "optimisation": BRIEF}
    design = dpfuse.train(training, validation, make_guarantee(budget=1e-4), **options)
    report = dpfuse.evaluate(design, test)
    assert design.structure.num_public == 1 and report.mse < 0.3 * report.prior_mse
