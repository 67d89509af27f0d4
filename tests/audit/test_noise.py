"""The precision attack: correct noise passes, and noise with a fault fails.

The draws are OpenDP's and have no seed; each check fails once in ten million runs for correct noise.
"""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from dpfuse.audit.noise import check_live, check_noise
from dpfuse.privacy import GRID, add_noise
from support.attacks import failed


@pytest.fixture(scope="module")
def draws():
    return add_noise(np.zeros(40_000, np.int64))


class TestNoise:
    def test_released_noise_passes(self, draws):
        assert failed(check_noise(draws)) == set()

    def test_simulated_noise_on_the_grid_has_too_few_values_in_its_tails(self):
        """One in a hundred of these draws is possible in one world only, though all are whole numbers."""
        normal = np.asarray(jax.random.normal(jax.random.key(0), (400_000,)))
        caught = failed(check_noise(np.round(normal * GRID).astype(np.int64)))
        assert "coincidences" in caught
        assert not caught & {"grid", "spread", "shape"}  # the distribution itself passes

    def test_too_little_noise_in_a_few_live_draws_is_found(self, draws):
        """Checked together with many correct draws, they pass."""
        assert check_live(draws[:200]).passed
        small = draws[:200] // 2
        assert not check_live(small).passed
        assert "spread" not in failed(check_noise(np.concatenate([draws[200:], small])))  # but for 1 in 10^6

    def test_no_draws_fail(self, draws):
        assert not check_live(draws[:0]).passed

    def test_noise_with_other_faults_fails(self, draws):
        assert "spread" in failed(check_noise((0.95 * draws).astype(np.int64)))
        assert "low bits" in failed(check_noise(draws // 16 * 16))
        assert "coincidences" in failed(check_noise(np.repeat(draws[::2], 2)))
        uniform = np.random.default_rng(0).uniform(-math.sqrt(3), math.sqrt(3), draws.size) * GRID
        assert "shape" in failed(check_noise(uniform.astype(np.int64)))
