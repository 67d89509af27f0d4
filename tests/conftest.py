"""JAX set up before anything uses it, and the data and designs that many tests share."""

from __future__ import annotations

import itertools

import jax
import pytest
from hypothesis import HealthCheck, settings

import dpfuse
from dpfuse.policy import Design
from dpfuse.trajectories import Trajectories
from support.designs import BRIEF, CASES, SMALL, make_design, make_guarantee, random_walks

# Two devices on every machine, so that every machine trains the same designs.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

# How long it takes to draw examples is the machine's business.
settings.register_profile(
    "dpfuse",
    derandomize=True,
    deadline=None,
    max_examples=25,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dpfuse")


def pytest_configure(config: pytest.Config) -> None:
    # Many tests compile the same programs, in this process and in others: each is compiled once.
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    config.addinivalue_line("filterwarnings", "ignore:Error (reading|writing) persistent compilation cache")
    assert jax.local_device_count() == 2  # from here on nothing changes the devices, `use_all_cores` neither


@pytest.fixture(scope="session")
def walks() -> tuple[Trajectories, Trajectories, Trajectories]:
    """Training, validation and test runs of a number that wanders, seen by five sensors for eight steps."""
    return random_walks(256, 0), random_walks(64, 1), random_walks(128, 2)


@pytest.fixture(scope="session")
def trained(walks) -> Design:
    """A small adaptive design after a few updates."""
    return dpfuse.train(walks[0], walks[1], make_guarantee(), architecture=SMALL, optimisation=BRIEF)


@pytest.fixture(scope="session")
def designs() -> dict[tuple[str, str, str], Design]:
    """A design for every accounting, adjacency and feature set, with weights as large as training makes them.

    Most are guided by past releases; with each accounting some are not, one of them in `SOME_CASES`. Of the sensors
    that have accounts of their own, half have spent them within four steps.
    """
    filters = {("total", "box"): "gru", ("individual", "orthant"): "gru"}
    return {
        case: make_design(
            *case, spread=1.0, expected_stay=1.0, recurrent_filter=filters.get((case[0], case[2]), "guided")
        )
        for case in CASES
    }


@pytest.fixture
def num_traces():
    """How often JAX has traced a function so far: nothing is compiled anew where this stands still."""
    count = itertools.count()
    total = [0]

    def listen(event, duration, **_):
        if event == "/jax/core/compile/jaxpr_trace_duration":
            total[0] = next(count) + 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    return lambda: total[0]
