"""The noise of a release: its distribution, its single use, and the thread that draws it."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from statistics import NormalDist

import numpy as np
import pytest

from dpfuse.guarantee import Guarantee
from dpfuse.privacy import GRID, Mechanism, Noise, add_noise, make_noise
from dpfuse.privacy import noise as noise_module

LARGEST = 2**63 - 1


class TestNoise:
    @pytest.mark.parametrize("size", [1, 256, 257, 1000])
    def test_noise_is_used_once(self, size):
        noise = Noise(size)
        assert noise.take().shape == (size,)
        for use in (noise.take, lambda: add_noise(np.zeros(size, np.int64), noise)):
            with pytest.raises(RuntimeError, match="was used already"):
                use()

    def test_noise_is_added_unchanged_to_a_sum_of_the_same_size(self, monkeypatch):
        monkeypatch.setattr(noise_module, "make_noise", lambda size: lambda zeros: [entry + 7 for entry in zeros])
        assert add_noise(np.array([1, -2]), Noise(2)).tolist() == [8, 5]
        with pytest.raises(ValueError, match="noise must have 3 coordinates, as many as the sum, got 2"):
            add_noise(np.zeros(3, np.int64), Noise(2))

    def test_refused_noise_does_not_use_up_the_charged_step(self):
        guarantee = Guarantee(order=2.0, budget=1.0, adjacency="remove-one", accounting="total")
        mechanism = Mechanism(guarantee, "ball", 2)
        charged = mechanism.charge(mechanism.open_accounts(), 0.5, [1], [[0.5, 0.0]])
        (used := Noise(2)).take()
        for wrong in (used, Noise(3)):
            with pytest.raises((RuntimeError, ValueError), match="noise"):
                mechanism.draw_many([charged], wrong)
        assert mechanism.draw(charged).value.shape == (2,)

    @pytest.mark.parametrize("drawn", [7, -7, LARGEST, -LARGEST - 1, 0])
    def test_a_sum_out_of_range_saturates_exactly(self, monkeypatch, drawn):
        monkeypatch.setattr(noise_module, "make_noise", lambda size: lambda zeros: [drawn] * size)
        sums = [LARGEST, LARGEST - 8, 1, 0, -1, 8 - LARGEST, -LARGEST - 1]
        expected = [min(max(total + drawn, -LARGEST - 1), LARGEST) for total in sums]
        assert add_noise(np.array(sums)).tolist() == expected

    @pytest.mark.parametrize("is_other_thread_busy", [True, False])
    def test_two_threads_share_the_work_and_keep_the_order(self, monkeypatch, is_other_thread_busy):
        """Each part shows which thread drew it. A thread that is blocked leaves the rest to the other."""
        this, has_begun, is_free = threading.get_ident(), threading.Event(), threading.Event()

        def draw(zeros):
            if threading.get_ident() != this:
                has_begun.set()
                is_free.wait(60)
                return [len(zeros)] * len(zeros)
            is_free.set()
            return [-len(zeros)] * len(zeros)

        monkeypatch.setattr(noise_module, "make_noise", lambda size: draw)
        if not is_other_thread_busy:
            is_free.set()
        noise = Noise(1000)
        assert has_begun.wait(60)
        if not is_other_thread_busy:
            noise_module._other_thread(noise._process).submit(int).result()
        drawn = noise.take().tolist()
        last = -232 if is_other_thread_busy else 232
        assert drawn[:256] == [256] * 256 and drawn[768:] == [last] * 232

    def test_a_child_process_cannot_use_noise_of_its_parent(self):
        code = (
            "import os\n"
            "from dpfuse.privacy import Noise\n"
            "noise = Noise(4)\n"
            "if os.fork() == 0:\n"
            "    try:\n"
            "        noise.take()\n"
            "    except RuntimeError as error:\n"
            "        print(error, flush=True)\n"
            "    os._exit(0)\n"
            "os.wait()\n"
            "assert len(noise.take()) == 4\n"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
        assert "this is of another one" in out.stdout


class TestAddNoise:
    def test_a_noisy_sum_never_wraps(self):
        largest = 2**63 - 1
        for _ in range(20):
            high, low = add_noise(np.array([largest, -largest - 1])).tolist()
            assert high > 2**62
            assert low < -(2**62)

    def test_a_long_sum_gets_independent_noise_in_order(self, monkeypatch):
        """Independent noise of two coordinates is equal once in millions of pairs."""
        exact_sum = np.arange(1001) * 2**40
        noise = add_noise(exact_sum) - exact_sum
        assert (np.abs(noise) < 8 * GRID).all() and 0.8 * GRID < noise.std() < 1.2 * GRID
        assert (noise[:500] == noise[501:]).sum() < 3
        monkeypatch.setattr(noise_module, "make_noise", lambda dimension: lambda values: values[1:])
        with pytest.raises(RuntimeError, match="returned 255 coordinates for 256|returned 232 coordinates for 233"):
            add_noise(exact_sum)

    def test_sums_of_wrong_shape_or_type_never_reach_opendp(self, monkeypatch):
        monkeypatch.setattr(noise_module, "make_noise", lambda dimension: pytest.fail("reached OpenDP"))
        for wrong in (
            np.zeros(0, np.int64),
            np.zeros((1, 2), np.int64),
            np.zeros(2),
            np.int64(3),
            np.zeros(2, bool),
        ):
            with pytest.raises(ValueError, match="exact_sum must be int64 of shape"):
                add_noise(np.asarray(wrong))

    def test_noise_of_wrong_length_is_not_released(self, monkeypatch):
        monkeypatch.setattr(noise_module, "make_noise", lambda dimension: lambda zeros: [*zeros, 0])
        with pytest.raises(RuntimeError, match="returned 3 coordinates for 2"):
            add_noise(np.zeros(2, np.int64))

    @pytest.mark.parametrize("scale", [0, -1])
    def test_scale_zero_never_reaches_opendp(self, monkeypatch, scale):
        import opendp.prelude as dp

        monkeypatch.setattr(dp.m, "make_gaussian", lambda *a, **k: pytest.fail("reached OpenDP"))
        with pytest.raises(ValueError, match="scale must be at least 1 grid step"):
            noise_module._make_gaussian(2, scale)

    @pytest.mark.parametrize("rho", [0.0, 0.4999, 0.51, math.inf, math.nan])
    def test_noise_with_another_rho_is_refused(self, monkeypatch, rho):
        import opendp.prelude as dp

        class Wrong:
            def map(self, _):
                return rho

        monkeypatch.setattr(dp.m, "make_gaussian", lambda *a, **k: Wrong())
        with pytest.raises(RuntimeError, match="must be 0.5"):
            noise_module._make_gaussian(2, GRID)

    def test_noise_has_the_scale_of_the_grid_and_is_built_once(self):
        assert make_noise(2) is make_noise(2)
        assert make_noise(2).map(float(GRID)) == pytest.approx(0.5, rel=1e-12)
        assert make_noise(2).map(2.0 * GRID) == pytest.approx(2.0, rel=1e-12)

    def test_a_forked_process_draws_noise_of_its_own(self):
        """In a process of its own, as forking one with threads (jax's) is not safe."""
        code = (
            "import os, numpy as np\n"
            "from dpfuse.privacy import add_noise\n"
            "add_noise(np.zeros(4, np.int64))\n"
            "is_child = os.fork() == 0\n"
            "print(add_noise(np.zeros(4, np.int64)).tolist(), flush=True)\n"
            "is_child and os._exit(0)\n"
            "os.wait()\n"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
        draws = out.stdout.split("\n")[:2]
        assert len(set(draws)) == len(draws) == 2


FALSE_ALARM = 1e-6


def noise_checks(noise):
    """Each check's statistic over its threshold: above 1 rejects discrete Gaussian noise of `GRID` steps.

    `noise` has shape (calls, coordinates). `FALSE_ALARM` is divided among these checks.
    Thresholds are asymptotic in n, which is above 40 000.
    """
    num_checks, n = 7, noise.size
    level = FALSE_ALARM / num_checks
    deviate = NormalDist().inv_cdf(1 - level / 2)  # two-sided
    unit = noise / GRID
    flat = np.sort(unit.ravel())
    cdf = 0.5 * (1 + np.vectorize(math.erf)(flat / math.sqrt(2)))
    rank = np.arange(n)
    distance = max((cdf - rank / n).max(), ((rank + 1) / n - cdf).max())
    low_bits = np.bincount(noise.ravel() % 16, minlength=16)
    return {
        "mean": abs(unit.mean()) * math.sqrt(n) / deviate,
        "variance": abs((unit**2).mean() - 1) * math.sqrt(n / 2) / deviate,
        "fourth moment": abs((unit**4).mean() - 3) * math.sqrt(n / 96) / deviate,
        "distribution": distance * math.sqrt(n) / math.sqrt(math.log(2 / level) / 2),  # Kolmogorov-Smirnov
        "coordinates": abs((unit[:, 1:] * unit[:, :-1]).mean()) * math.sqrt(unit[:, 1:].size) / deviate,
        "calls": abs((unit[1:] * unit[:-1]).mean()) * math.sqrt(unit[1:].size) / deviate,
        # Chi-square with 15 degrees of freedom, bounded as in Laurent and Massart 2000, Lemma 1.
        "low bits": ((low_bits - n / 16) ** 2 / (n / 16)).sum()
        / (15 + 2 * math.sqrt(15 * math.log(1 / level)) + 2 * math.log(1 / level)),
    }


@pytest.fixture(scope="module")
def noise():
    offset = np.arange(-1000, 1000) * 12345
    return np.array([add_noise(offset) - offset for _ in range(25)])


class TestDistribution:
    def test_noise_is_the_discrete_gaussian_of_the_grid(self, noise):
        assert noise.dtype == np.int64
        failed = {name: value for name, value in noise_checks(noise).items() if value > 1}
        assert not failed

    @pytest.mark.parametrize("scale", [2 / 3, 4 / 3])
    def test_noise_with_a_scale_off_by_a_third_fails_the_checks(self, noise, scale):
        checks = noise_checks(np.round(noise * scale).astype(np.int64))
        assert min(checks["variance"], checks["fourth moment"], checks["distribution"]) > 1

    def test_noise_with_other_faults_fails_the_checks(self, noise):
        assert noise_checks(noise + GRID // 20)["mean"] > 1
        assert noise_checks(noise // 16 * 16)["low bits"] > 1
        assert noise_checks(np.repeat(noise[:, ::2], 2, axis=1))["coordinates"] > 1
        assert noise_checks(np.repeat(noise[::2], 2, axis=0))["calls"] > 1
        uniform = np.random.default_rng(0).uniform(-math.sqrt(3), math.sqrt(3), noise.shape) * GRID
        assert noise_checks(uniform.astype(np.int64))["distribution"] > 1


def test_noise_is_made_without_the_large_imports_of_opendp():
    code = "import sys; from dpfuse.privacy import make_noise; make_noise(2); print('opendp.prelude' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.strip() == "False"
