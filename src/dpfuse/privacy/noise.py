"""The noise of a release: OpenDP's discrete Gaussian of `GRID` steps, exact and from cryptographic randomness.

It depends on nothing that is released, so a centre with many streams has it drawn by another thread while it computes
what the noise is to be added to.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Integers
from dpfuse.privacy.budget import GRID

# Coordinates that take a few milliseconds, in which OpenDP lets go of the interpreter: to wake a thread for less would
# cost more than it saves.
_PART = 256
_LARGEST = 2**63 - 1


class Noise:
    """Noise for one step, good for one use. Private: it stays in the centre.

        noise = Noise(2000)                    # begins to draw, in another thread
        ...                                    # compute the sum meanwhile
        released = add_noise(exact_sum, noise)

    **Guarantees**
        - Each coordinate is a draw of its own of the discrete Gaussian of `GRID` steps, and depends on nothing else.
        - It is handed out once, to the process that had it drawn, and kept nowhere.

    Args:
        size: how many coordinates.
    """

    def __init__(self, size: int) -> None:
        self.size = _check.is_count("size", size)
        self._process, self._lock, self._is_taken = os.getpid(), threading.Lock(), False
        self._parts: list[tuple[int, Future[Integers] | None]] = [(size, None)]
        if size > _PART:
            sizes = (min(_PART, size - first) for first in range(0, size, _PART))
            self._parts = [(part, _other_thread(self._process).submit(_draw, part)) for part in sizes]

    def check(self, size: int) -> None:
        """Raise if this is not noise for so many coordinates that may still be used, here."""
        if size != self.size:
            raise ValueError(f"noise must have {size} coordinates, as many as the sum, got {self.size}")
        if os.getpid() != self._process:
            raise RuntimeError("this noise is of another process, which may use it; draw noise where it is used")
        if self._is_taken:
            raise RuntimeError("this noise was used already; noise that is added twice can be subtracted")

    def take(self) -> Integers:
        """The noise, shape (size,), once."""
        with self._lock:
            self.check(self.size)
            self._is_taken = True
            parts, self._parts = self._parts, []
        # From the end: what the other thread has not begun is drawn here.
        drawn = [_draw(size) if part is None or part.cancel() else part.result() for size, part in parts[::-1]]
        return np.concatenate(drawn[::-1])

    def __repr__(self) -> str:
        return f"Noise({self.size})"


def add_noise(exact_sum: Integers, noise: Noise | None = None) -> Integers:
    """The sum plus independent discrete Gaussian noise of `GRID` steps in each coordinate; saturates at i64.

    **Guarantees**
        - A change of the sum by an integer vector q has a Rényi loss of at most alpha q.q / (2 GRID^2) at
          every order, whatever the sum is.
        - The noise is drawn for this sum alone, in this process, used once and kept nowhere.

    Args:
        exact_sum: int64, shape (d,).
        noise: of d coordinates, which is used up; None draws it now.
    """
    if exact_sum.ndim != 1 or exact_sum.dtype != np.int64 or not len(exact_sum):
        raise ValueError(f"the sum must be int64 of shape (d,), got {exact_sum.dtype} of {exact_sum.shape}")
    noise = noise or Noise(len(exact_sum))
    noise.check(len(exact_sum))
    drawn = noise.take()
    # The sum is first kept as far from the ends of int64 as the noise is long: then nothing wraps.
    low, high = -_LARGEST - 1 - np.minimum(drawn, 0), _LARGEST - np.maximum(drawn, 0)
    return np.clip(exact_sum, low, high) + drawn


def _draw(size: int) -> Integers:
    drawn = make_noise(size)(np.zeros(size, np.int64))  # of a list OpenDP would look at each entry
    if len(drawn) != size:
        raise RuntimeError(f"OpenDP returned {len(drawn)} coordinates for {size}")
    return np.array(drawn, np.int64)


@functools.lru_cache(maxsize=16)
def make_noise(dimension: int) -> Callable[[Integers], list[int]]:
    """OpenDP's discrete Gaussian for `dimension` coordinates, built once a process: call it before the clock.

    The first call takes half a second, most of it the import of OpenDP.
    """
    return _make_gaussian(_check.is_count("dimension", dimension), GRID)


def _make_gaussian(dimension: int, scale: int) -> Callable[[Integers], list[int]]:
    # OpenDP takes scale 0, and then releases the value itself; a vector of any length passes it too.
    if scale < 1:
        raise ValueError(f"scale must be at least one grid step, got {scale}")
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"), size=dimension)
    gaussian = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=float(scale))
    rho = gaussian.map(float(scale))  # type: ignore[no-untyped-call]
    if not 0.5 <= rho <= 0.5 + 1e-9:
        raise RuntimeError(f"OpenDP's noise of scale {scale} must have rho 0.5 for a move of {scale}, got {rho}")
    return gaussian


@functools.lru_cache(maxsize=1)
def _other_thread(process: int) -> ThreadPoolExecutor:
    """A thread of this process, started once: that of a parent does not live in a child."""
    return ThreadPoolExecutor(1, thread_name_prefix="dpfuse-noise")
