"""The simulated freeway: traffic like that of US-101, no collisions, and recordings that agree with it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dpfuse._slots import assign_slots
from dpfuse.systems.freeway import Freeway, car_following, recording, simulate, watch
from dpfuse.systems.freeway.car_following import drive
from dpfuse.trajectories import NOBODY, Trajectories


@pytest.fixture(scope="module")
def morning() -> Trajectories:
    """Eight runs of the 45 minutes of the recording."""
    return simulate(num_runs=8, interval_s=1.5, seed=0)


@pytest.fixture(scope="module")
def minutes() -> Trajectories:
    return simulate(num_runs=2, duration_s=120, interval_s=0.1, seed=1)


@pytest.fixture
def short_warm_up(monkeypatch) -> None:
    """For tests that need no waves."""
    monkeypatch.setattr(car_following, "_WARM_UP_S", 20.0)


def autocorrelation(density: np.ndarray, lag: int) -> float:
    """Of deviations from the mean over all runs, shape (N, K)."""
    deviation = density - density.mean()
    return float((deviation[:, lag:] * deviation[:, :-lag]).mean() / np.square(deviation).mean())


@pytest.mark.slow
def test_density_speed_and_correlation_are_those_of_us101(morning: Trajectories) -> None:
    # The field measured on x = 120 to 520 m, 07:50 to 08:35: see "figures to calibrate a simulator to" in the
    # README of the data.
    density = morning.state[..., 0].astype(np.float64)
    assert density.mean() == pytest.approx(231.7, rel=0.05)
    assert density.std() == pytest.approx(45.7, rel=0.15)
    assert autocorrelation(density, 7) == pytest.approx(0.954, abs=0.03)  # 10.5 s
    assert autocorrelation(density, 13) == pytest.approx(0.874, abs=0.03)  # 19.5 s
    assert autocorrelation(density, 40) == pytest.approx(0.388, abs=0.1)  # 60 s
    speed = morning.measurements[..., 1][morning.present]
    assert speed.mean(dtype=np.float64) == pytest.approx(9.3, rel=0.1)


def test_the_calibration_check_fails_for_calm_traffic() -> None:
    calm = simulate(Freeway(wave_depth=0.2), num_runs=8, duration_s=600, interval_s=1.5)
    assert calm.state.std() < 45.7 * 0.85


def test_waves_travel_upstream(morning: Trajectories) -> None:
    position, speed = morning.measurements[..., 0], morning.measurements[..., 1]

    def speed_near(place_m: float) -> np.ndarray:
        there = morning.present & (np.abs(position - place_m) < 25)
        mean = np.where(there, speed, 0).sum(-1) / np.maximum(there.sum(-1), 1)
        return mean - mean.mean()

    upstream, downstream = speed_near(50), speed_near(350)
    lags = np.arange(-80, 80)
    first, last = np.maximum(-lags, 0), morning.num_steps - np.maximum(lags, 0)
    products = [
        (downstream[:, a:b] * upstream[:, a + lag : b + lag]).mean()
        for lag, a, b in zip(lags, first, last, strict=True)
    ]
    best = int(np.argmax(products))
    wave_speed = 300 / (lags[best] * morning.interval_s)
    assert 4 < wave_speed < 5.5
    assert products[best] > 0.8 * upstream.std() * downstream.std()


def test_waves_nearly_stop_the_traffic(morning: Trajectories) -> None:
    density = morning.state[..., 0]
    speed = morning.measurements[..., 1].sum(-1) / morning.present.sum(-1)
    assert (density.max(1) > 300).all() and (density.min(1) < 200).all()
    assert 3.5 < speed[density > 320].mean() < 5.5
    assert 11 < speed[(density > 180) & (density < 210)].mean() < 13


def test_vehicles_never_collide_or_drive_backwards() -> None:
    rough = [Freeway(), Freeway().randomised(3, 0.5), Freeway(noise_mps2=2.0, driver_spread=0.3)]
    for traffic in drive(rough, num_steps=1500, steps_each=1, seed=[0]):
        assert traffic.gaps().min() > 0
        assert traffic.speed.min() >= 0
        assert (traffic.position[1:].min(0) < 0).all()  # the queue reaches past the start of the road


def test_accelerations_are_those_of_real_drivers() -> None:
    before = None
    for traffic in drive([Freeway()], num_steps=1000, steps_each=1, seed=[0]):
        now = traffic.speed[1:].copy(), traffic.vehicle.copy()
        if before is not None:
            change = (now[0] - before[0])[now[1] == before[1]] / 0.1
            assert -5 < change.min() and change.max() < 3.5
        before = now


def test_vehicles_of_all_lanes_drive_at_different_speeds(minutes: Trajectories) -> None:
    spread = [minutes.measurements[0, step, minutes.present[0, step], 1].std() for step in range(0, 1200, 100)]
    assert min(spread) > 0.3
    ids = minutes.sensors[0][minutes.present[0]]
    assert set(np.unique(ids % 5)) == {0, 1, 2, 3, 4}


def test_positions_speeds_and_density_agree(minutes: Trajectories) -> None:
    present = minutes.present
    assert (present == (minutes.sensors != NOBODY)).all()
    np.testing.assert_allclose(minutes.state[..., 0], present.sum(-1) / 0.4)
    position, speed = minutes.measurements[..., 0], minutes.measurements[..., 1]
    assert position[present].min() >= 0 and position[present].max() < 400
    stays = present[:, 1:] & (minutes.sensors[:, 1:] == minutes.sensors[:, :-1])
    moved = (position[:, 1:] - position[:, :-1])[stays]
    np.testing.assert_allclose(moved, 0.1 * speed[:, 1:][stays], atol=1e-3)
    assert minutes.num_slots == present.sum(-1).max()


def test_ids_grow_from_vehicle_to_follower_in_each_lane(minutes: Trajectories) -> None:
    for step in range(0, minutes.num_steps, 100):
        here = minutes.present[0, step]
        ids, position = minutes.sensors[0, step, here], minutes.measurements[0, step, here, 0]
        for lane in range(5):
            in_lane = ids % 5 == lane
            order = np.argsort(ids[in_lane])
            assert (np.diff(position[in_lane][order]) < -3).all()


def test_a_vehicle_keeps_its_slot_and_no_slot_is_wasted(minutes: Trajectories) -> None:
    again = minutes.compact()  # its constructor checks that vehicles keep their slots
    assert again.num_slots == minutes.num_slots
    fewer = minutes.sample_sensors(0.3, seed=0)
    assert 0.15 < fewer.present.sum() / minutes.present.sum() < 0.45


def test_slots_are_assigned_first_free_first() -> None:
    entered, stay = np.array([0, 0, 2, 3, 4]), np.array([2, 10, 2, 3, 1])
    # 0 leaves before step 2, so 2 takes its slot until step 4, where 4 does; 3 finds none free.
    assert assign_slots(entered, stay).tolist() == [0, 1, 0, 2, 0]


def test_traffic_depends_on_the_seed_only_not_on_runs_duration_or_interval(short_warm_up) -> None:
    def record(**changes: float) -> Trajectories:
        return simulate(**{"num_runs": 2, "duration_s": 20, "interval_s": 0.5, "seed": 4, **changes})

    base = record()
    for other, steps in [
        (record(), 1),
        (record(num_runs=3), 1),
        (record(duration_s=40), 1),
        (record(interval_s=0.1), 5),
    ]:
        runs = other.runs([0, 1])
        np.testing.assert_array_equal(base.state, runs.state[:, ::steps][:, : base.num_steps])
        for run in range(2):
            assert _speeds(base, run, base.num_steps - 1) == _speeds(runs, run, steps * (base.num_steps - 1))
    assert not np.array_equal(base.state, record(seed=5).state)
    assert not np.array_equal(base.state[0], base.state[1])


def _speeds(trajectories: Trajectories, run: int, step: int) -> dict[int, float]:
    here = trajectories.present[run, step]
    ids, speed = trajectories.sensors[run, step, here], trajectories.measurements[run, step, here, 1]
    return dict(zip(ids.tolist(), speed.tolist(), strict=True))


def test_recording_the_whole_road_shows_the_same_traffic(short_warm_up) -> None:
    freeway = Freeway()
    whole = replace(freeway, section_start_m=0, section_m=freeway.road_m)
    part, all_of_it = (simulate(each, duration_s=10, interval_s=1.0) for each in (freeway, whole))
    position = all_of_it.measurements[..., 0]
    inside = all_of_it.present & (position >= 120) & (position < 520)
    np.testing.assert_allclose(part.state[..., 0], inside.sum(-1) / 0.4)


def test_each_run_may_have_a_freeway_of_its_own() -> None:
    slow = Freeway(bottleneck_speed_mps=6.0)
    both = simulate([Freeway(), slow], duration_s=300, interval_s=1.5)
    assert both.state[1].mean() > both.state[0].mean() + 50


def test_as_many_vehicles_come_as_the_demand() -> None:
    free = Freeway(demand_per_h=600.0, bottleneck_speed_mps=28.0, wave_depth=0.01)
    traffic = simulate(free, num_runs=4, duration_s=600, interval_s=1.0)
    per_hour = traffic.begins_stay.sum() * 6 / 4 / free.num_lanes
    assert 480 < per_hour < 720
    assert traffic.state.mean() < 0.3 * simulate(duration_s=600, interval_s=1.0).state.mean()


def test_a_queue_forms_where_more_come_than_the_bottleneck_lets_pass() -> None:
    narrow, wide = (
        simulate(Freeway(demand_per_h=1900.0, bottleneck_speed_mps=speed), duration_s=600, interval_s=1.0)
        for speed in (6.0, 28.0)
    )
    assert narrow.state.mean() > 2 * wide.state.mean()


def test_trucks_need_more_road_and_lanes_may_differ() -> None:
    def speeds_of_lanes(road: Freeway) -> list[float]:
        traffic = simulate(road, duration_s=600, interval_s=2.0)
        lane, speed = traffic.sensors[traffic.present] % 5, traffic.measurements[traffic.present][:, 1]
        return [float(speed[lane == each].mean()) for each in range(5)]

    cars, trucks = (simulate(Freeway(truck_share=share), duration_s=600, interval_s=2.0) for share in (0.0, 0.9))
    assert trucks.state.mean() < 0.8 * cars.state.mean()
    assert np.std(speeds_of_lanes(Freeway(lane_spread=0.8))) > 2 * np.std(speeds_of_lanes(Freeway()))


def test_randomised_freeways_neither_jam_nor_flow_freely() -> None:
    freeways = [Freeway().randomised(seed) for seed in range(8)]
    assert freeways[0] == Freeway().randomised(0) and len(set(freeways)) == 8
    assert all(each.road_m == Freeway().road_m and each.num_lanes == 5 for each in freeways)
    traffic = simulate(freeways, duration_s=600, interval_s=1.5)
    density = traffic.state[..., 0].mean(1)
    speed = traffic.measurements[..., 1].sum((1, 2)) / traffic.present.sum((1, 2))
    assert density.min() > 120 and density.max() < 400 and density.std() > 10
    assert speed.min() > 4 and speed.max() < 20


def test_randomised_parameters_stay_within_their_limits() -> None:
    for seed in range(200):
        Freeway().randomised(seed, spread=0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time_gap_s": 0.0}, "time_gap_s must be finite and > 0, got 0.0"),
        ({"noise_mps2": -0.1}, "noise_mps2 must be finite and > 0"),
        ({"num_lanes": 0}, "num_lanes must be at least 1"),
        ({"wave_depth": 0.99}, "wave_depth must be at most 0.85, got 0.99"),
        ({"road_m": 500.0}, "road_m must reach the end of the section at 520.0 m, got 500.0"),
        ({"desired_speed_mps": 10.0}, "bottleneck_speed_mps must be below desired_speed_mps, 10.0"),
    ],
)
def test_a_wrong_parameter_of_a_freeway_is_named(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Freeway(**changes)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"interval_s": 0.25}, ValueError, "interval_s must be a multiple of 0.1, got 0.25"),
        ({"duration_s": 0.05}, ValueError, "duration_s must be at least interval_s, 0.2, got 0.05"),
        ({"num_runs": 0}, ValueError, "num_runs must be at least 1"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"freeway": []}, TypeError, "freeway must be a Freeway or a sequence"),
        ({"freeway": [Freeway()] * 2, "num_runs": 3}, ValueError, "num_runs must be the number of freeways, 2"),
        ({"freeway": [Freeway(), Freeway(road_m=800.0)]}, ValueError, "freeway must have one road_m"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        simulate(**arguments)


def test_a_spread_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="spread must be at most 0.5, got 0.6"):
        Freeway().randomised(0, spread=0.6)


class TestWatch:
    @pytest.fixture(autouse=True)
    def short_legs(self, short_warm_up, monkeypatch) -> None:
        monkeypatch.setattr(recording, "_LEG_S", 30.0)

    def test_it_starts_with_the_traffic_of_simulate(self) -> None:
        recorded = simulate(duration_s=30, seed=3)
        for step, moment in enumerate(itertools.islice(watch(seed=3), recorded.num_steps)):
            there = recorded.present[0, step]
            order, by_id = np.argsort(recorded.sensors[0, step][there]), np.argsort(moment.sensors)
            np.testing.assert_array_equal(moment.sensors[by_id], recorded.sensors[0, step][there][order])
            np.testing.assert_array_equal(moment.measurements[by_id], recorded.measurements[0, step][there][order])
            np.testing.assert_array_equal(moment.state, recorded.state[0, step])

    def test_vehicles_drive_on_where_new_drivers_are_drawn(self) -> None:
        """Across three joins no vehicle jumps, and no vehicle that left returns."""
        left: set[int] = set()
        before: dict[int, tuple[float, float]] = {}
        for moment in itertools.islice(watch(seed=4), 600):
            now = dict(zip(moment.sensors.tolist(), map(tuple, moment.measurements.tolist()), strict=True))
            for vehicle in before.keys() & now.keys():
                # Not further than the speeds before and after allow, as braking and accelerating are bounded.
                travelled = now[vehicle][0] - before[vehicle][0]
                assert abs(travelled - 0.1 * (before[vehicle][1] + now[vehicle][1])) < 0.6
            left |= before.keys() - now.keys()
            assert not left & now.keys()
            before = now

    def test_each_leg_has_new_traffic(self) -> None:
        moments = list(itertools.islice(watch(seed=5), 450))
        first, second, third = ([moments[at].state[0] for at in range(150 * leg, 150 * leg + 150)] for leg in range(3))
        assert first != second != third
