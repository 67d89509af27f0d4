"""The noise of a release: OpenDP's discrete Gaussian of `GRID` steps, exact and from cryptographic randomness.

Noise does not depend on data, so a centre with many streams draws it in another thread while it computes the sums.
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

# Coordinates that one task of the other thread draws, in a few milliseconds without the interpreter's lock. For fewer,
# waking the thread costs more than it saves.
_PART = 256
_LARGEST = 2**63 - 1


class Noise:
    """Noise for one step, to be used once. Private: it stays in the centre.

        noise = Noise(2000)                    # starts to draw in another thread
        ...                                    # compute the sum meanwhile
        released = add_noise(exact_sum, noise)

    **Guarantees**
        - Each coordinate is an independent draw of the discrete Gaussian of `GRID` steps.
        - The noise is returned once, in the process that drew it, and is not kept.

    Args:
        size: the number of coordinates.
    """

    def __init__(self, size: int) -> None:
        self.size = _check.is_count("size", size)
        self._process, self._lock, self._is_taken = os.getpid(), threading.Lock(), False
        self._parts: list[tuple[int, Future[Integers] | None]] = [(size, None)]
        if size > _PART:
            sizes = (min(_PART, size - first) for first in range(0, size, _PART))
            self._parts = [(part, _other_thread(self._process).submit(_draw, part)) for part in sizes]

    def check(self, size: int) -> None:
        """Raise unless this noise has `size` coordinates, is of this process and was not used."""
        if size != self.size:
            raise ValueError(f"noise must have {size} coordinates, as many as the sum, got {self.size}")
        if os.getpid() != self._process:
            raise RuntimeError("noise must be of this process, this is of another one; draw noise where it is used")
        if self._is_taken:
            raise RuntimeError("noise must be used once, this was used already; draw new noise")

    def take(self) -> Integers:
        """The noise, shape (size,), once."""
        with self._lock:
            self.check(self.size)
            self._is_taken = True
            parts, self._parts = self._parts, []
        # From the end: this thread draws the parts that the other one has not started.
        drawn = [_draw(size) if part is None or part.cancel() else part.result() for size, part in parts[::-1]]
        return np.concatenate(drawn[::-1])

    def __repr__(self) -> str:
        return f"Noise({self.size})"


def add_noise(exact_sum: Integers, noise: Noise | None = None) -> Integers:
    """The sum plus independent discrete Gaussian noise of `GRID` steps in each coordinate; saturates at int64.

    **Guarantees**
        - A change of the sum by an integer vector q has a Rényi loss of at most alpha q.q / (2 GRID^2) at every order
          alpha, for any sum.
        - The noise is drawn in this process, for this sum alone, used once and not kept.

    Args:
        exact_sum: int64, shape (d,).
        noise: of d coordinates; this call uses it up. None draws it now.
    """
    if exact_sum.ndim != 1 or exact_sum.dtype != np.int64 or not len(exact_sum):
        raise ValueError(f"exact_sum must be int64 of shape (d,), got {exact_sum.dtype} of {exact_sum.shape}")
    noise = noise or Noise(len(exact_sum))
    noise.check(len(exact_sum))
    drawn = noise.take()
    # Clip the sum to the range in which adding this noise cannot wrap.
    low, high = -_LARGEST - 1 - np.minimum(drawn, 0), _LARGEST - np.maximum(drawn, 0)
    return np.clip(exact_sum, low, high) + drawn


def _draw(size: int) -> Integers:
    drawn = make_noise(size)(np.zeros(size, np.int64))  # an array, as OpenDP would check each entry of a list
    if len(drawn) != size:  # OpenDP does not check the length
        raise RuntimeError(f"OpenDP returned {len(drawn)} coordinates for {size}")
    return np.array(drawn, np.int64)


@functools.lru_cache(maxsize=16)
def make_noise(dimension: int) -> Callable[[Integers], list[int]]:
    """OpenDP's discrete Gaussian for `dimension` coordinates, built once in a process.

    The first call takes half a second, most of it the import of OpenDP: make it before the clock starts.
    """
    return _make_gaussian(_check.is_count("dimension", dimension), GRID)


def _make_gaussian(dimension: int, scale: int) -> Callable[[Integers], list[int]]:
    # OpenDP accepts scale 0, and then releases the value itself.
    if scale < 1:
        raise ValueError(f"scale must be at least 1 grid step, got {scale}")
    # `opendp.prelude` has the same, and imports much else: a centre that was killed should be back soon.
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    domain = vector_domain(atom_domain(T="i64"), size=dimension)
    gaussian = make_gaussian(domain, l2_distance(T=float), scale=float(scale))
    rho = gaussian.map(float(scale))  # type: ignore[no-untyped-call]
    if not 0.5 <= rho <= 0.5 + 1e-9:
        raise RuntimeError(f"OpenDP's rho at scale {scale} must be 0.5 for a distance of {scale}, got {rho}")
    return gaussian


@functools.lru_cache(maxsize=1)
def _other_thread(process: int) -> ThreadPoolExecutor:
    """One thread for each process: after a fork the child has no thread of its parent."""
    return ThreadPoolExecutor(1, thread_name_prefix="dpfuse-noise")
