"""Stored results show what the docs claim; the case study of US-101 has a file of its own."""

from __future__ import annotations

import itertools

import pytest

import dpfuse
from dpfuse.cli.live import DESIGN
from experiments.baselines.mechanisms import BASELINES
from experiments.us101.jobs import BUDGETS
from tools.results import read_results

pytestmark = pytest.mark.results


def test_every_design_of_the_demo_keeps_its_budget_and_beats_the_prior():
    demo = read_results("demo")
    for name, design in demo["designs"].items():
        assert design["within_budget"], name
        assert design["mse"] < demo["prior_mse"]
    assert demo["paired"]["adaptive"]["ratio"] <= 0.92
    assert demo["paired"]["adaptive"]["ci95"][1] < 1
    assert demo["paired"]["individual"]["ci95"][1] < 1
    assert demo["designs"]["individual"]["mse"] <= demo["designs"]["adaptive"]["mse"]
    assert demo["non_private_mse"] < demo["designs"]["individual"]["mse"]


def test_the_design_that_was_tested_is_the_one_that_comes_with_dpfuse():
    live = read_results("live")
    assert live["fingerprint"] == dpfuse.load(DESIGN).fingerprint
    assert dpfuse.Guarantee(**live["guarantee"]) == dpfuse.load(DESIGN).guarantee
    assert all(designs["design"]["within_budget"] for designs in live["tests"].values())


def test_the_built_in_design_tracks_the_density_of_roads_that_it_never_saw():
    for world, designs in read_results("live")["tests"].items():
        own, floor = designs["design"], designs["floor"]
        assert own["mse"] < (0.5 if world == "the road of SUMO" else 0.15) * own["prior_mse"], world
        assert floor["mse"] < own["mse"], world
        assert own["coverage"] > 0.85, world


def test_bounds_found_by_the_audit_stay_below_the_claims():
    audit = read_results("audit")
    for row in audit["budgets"]:
        assert row["reach"] > 0.999 and row["epsilon_bound"] <= row["epsilon_claimed"]
        assert row["share"] >= 0.85 or row["budget"] < 0.5
    for design in audit["designs"].values():
        assert design["passed"]
        assert all(attack["epsilon_bound"] <= design["epsilon_claimed"] for attack in design["attacks"])


def test_every_baseline_keeps_its_budget_and_adaptive_designs_beat_the_best():
    systems = read_results("baselines")["systems"]
    assert list(systems) == ["random walk", "hidden Markov chain", "freeway"]
    for system, budget in itertools.product(systems, ("0.15", "0.5", "1.5")):
        found = systems[system]["budgets"][budget]
        assert set(found["mechanisms"]) == {*BASELINES, "classical", "adaptive", "individual"}
        for name, figures in found["mechanisms"].items():
            assert figures["within_budget"], (system, budget, name)
            assert figures["mse"] < systems[system]["prior_mse"], (system, budget, name)
        for name in ("adaptive", "individual"):
            assert found["over_best_baseline"][name]["ci95"][1] < 1, (system, budget, name)


def test_a_classical_design_beats_the_best_baseline_where_the_page_says():
    systems = read_results("baselines")["systems"]
    found = [(name, budget, each) for name, system in systems.items() for budget, each in system["budgets"].items()]
    level = [(name, budget) for name, budget, each in found if each["over_best_baseline"]["classical"]["ci95"][1] >= 1]
    assert level == [*(("random walk", budget) for budget in ("0.15", "0.5", "1.5")), ("freeway", "0.15")]
    assert [each["best_baseline"] for *_, each in found].count("two-stage") == 8
    for name, budget, each in found:
        settings = {baseline: each["mechanisms"][baseline]["settings"] for baseline in ("output", "local")}
        assert settings["output"]["noise_factor"] == 0.001, (name, budget)
        assert (settings["local"]["outside"] == 0.2) == (name != "hidden Markov chain"), (name, budget)


def test_learned_designs_come_close_to_the_optimum():
    results = read_results("optimality")
    presets = results["presets"] | results["three_states"]
    assert set(presets) == {"slow", "onset", "scarce", "incident"}
    for preset in presets.values():
        solved, learned = preset["solved"], preset["learned"]
        assert abs(preset["crosscheck"]["difference"]) < 0.01
        assert preset["simulated"]["value"] == pytest.approx(solved["adaptive"], rel=0.01)
        assert learned["adaptive"]["total"] < 0.03
        assert (1 + learned["schedule"]["total"]) * solved["adaptive"] / solved["schedule"] < 1.03
        if preset["closed_loop_gain"] > 0.05:
            assert learned["adaptive"]["ci95"][1] < solved["schedule"] / solved["adaptive"] - 1
    assert max(preset["closed_loop_gain"] for preset in presets.values()) >= 0.05


def test_whole_collections_are_solved_to_the_digits_that_are_quoted():
    general = read_results("optimality")["general"]
    assert set(general) == {"gaussian", "2 symbols", "4 symbols"}
    for solved in general.values():
        assert solved["discretisation_error"] < 1e-3 and solved["largest_difference"] < 1e-3
    for symbols in ("2 symbols", "4 symbols"):
        low, high = general[symbols]["simulated"]["ci95"]
        assert low < general[symbols]["value"] < high
        assert general[symbols]["gap"] < 1e-6
        assert general[symbols]["value"] < general["gaussian"]["value"]


def test_the_live_page_is_up_within_a_second_and_asks_no_other_host():
    page = read_results("page")
    assert page["ms"]["first_release"]["median"] < 1000
    assert page["updates_per_second"] > 4.9
    assert page["requests_to_other_hosts"] == 0


def test_a_durable_release_takes_at_most_three_times_its_noise_and_one_sync():
    assert all(kind["ratio_of_medians"] <= 3 for kind in read_results("durable")["ms"].values())


def test_missing_channels_cost_at_most_15_percent_and_far_less_than_dropped_reports():
    rows = read_results("channels")["rows"]
    assert all(row["within_budget"] for row in rows.values())
    assert rows["partial"]["ratio"] <= 1.15
    assert rows["partial"]["ratio"] < rows["dropped"]["ratio"] - 0.2 < rows["complete_on_partial"]["ratio"]
    for own, dropped in zip(rows["partial"]["ratio_of_seeds"], rows["dropped"]["ratio_of_seeds"], strict=True):
        assert own[2] < dropped[1]  # the intervals of each seed lie apart


@pytest.mark.parametrize(("transport", "at_least"), [("http", 40_000), ("mqtt", 5_000)])
def test_no_report_is_lost_at_the_paced_rate(transport, at_least):
    paced = read_results("ingest")[transport]["paced"]
    assert paced["lost"] == 0 and paced["per_second"] >= at_least


def test_reading_us101_takes_seconds_and_less_than_a_gigabyte():
    parquet = read_results("reader")["reading"]["at hand, Parquet"]
    assert parquet["with_trajectories_s"] < 5 and parquet["peak_rss_mb"] < 1000 and parquet["sightings"] > 3.8e6


def test_reading_sumo_is_bounded_in_memory_and_fast():
    sumo = read_results("reader")["sumo"]
    whole, fifth = sumo["floating-car data, XML"], sumo["a fifth of it"]
    assert whole["bytes"] >= 1.5e9 and whole["peak_rss_mb"] < 1000 and whole["mb_per_s"] >= 20
    assert whole["peak_rss_mb"] < 3 * fifth["peak_rss_mb"]  # for five times the file, of which a tenth is kept


def test_a_detector_adds_nothing_on_us101_at_any_budget():
    found = read_results("detector")
    assert [float(budget) for budget in found["budgets"]] == list(BUDGETS) and found["updates"] == 300
    for rows in found["budgets"].values():
        assert 1 < rows["with"]["ratio"] < rows["with"]["ratio_ci95"][1] < 1.3
        for row in rows.values():
            assert row["num_over_budget"] == 0 and row["most_spent"] <= row["budget"]
            assert row["ci95"][0] < row["mse"] < row["ci95"][1] < 0.2 * found["prior_mse"]
    assert found["alone"] > found["prior_mse"]


def test_our_ppo_reaches_the_final_error_of_stable_baselines3_ten_times_sooner():
    """By either clock and with every seed; the peer's curve is kept with its best point."""
    rl = read_results("rl")
    after = rl["targets"]["after its whole time (last minute)"]
    assert min(after[clock]["times_sooner"][seed] for clock in ("wall_s", "cpu_s") for seed in range(3)) >= 10
    assert rl["peer"]["wall_s"] >= 1190
    assert round(rl["peer"]["error"], 2) == min(rl["peer"]["curve"]["error"])


def test_meters_with_a_budget_for_each_day_are_as_good_on_day_30_as_on_day_2():
    meters = read_results("meters")
    low, high = meters["day"]["interval"]
    assert low < 1 < high and meters["day"]["report"]["within_budget"]
    assert meters["day"]["mse"] < 0.1 * meters["prior_mse"]
    assert meters["live"]["days_above_budget"] == 0 and meters["live"]["days_begun"] == 30
    assert meters["live"]["largest_loss_of_a_household_in_a_day"] <= meters["budget"]
    assert meters["all_time"]["interval"][0] > 10  # a budget for all time runs out
