"""The case study: parts that share nothing, pieces that are told apart, and a page that quotes its results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpfuse import Trajectories
from experiments.us101 import pieces, report, run, traffic
from tools.results import read_results

FOLDER = Path(__file__).parents[2] / "experiments/us101"


@pytest.fixture(scope="module")
def study():
    """The modules of the experiment, by name."""
    return {"pieces": pieces, "report": report, "run": run, "traffic": traffic}


@pytest.fixture(scope="module")
def results():
    return read_results("us101")


@pytest.fixture(scope="module")
def road():
    """A recording whose state is the step it was taken at, with vehicles that stay 60 s."""
    num_steps, num_slots, stay = 13_000, 4, 300
    steps = np.arange(num_steps, dtype=np.float32)
    ids = (np.arange(num_steps) // stay)[:, None] * num_slots + np.arange(num_slots)
    return Trajectories(
        steps[None, :, None],
        np.broadcast_to(steps[None, :, None, None], (1, num_steps, num_slots, 2)),
        sensors=ids[None],
        interval_s=0.2,
    )


class TestParts:
    def steps(self, part):
        return set(part.state.ravel().astype(int).tolist())

    def ids(self, part):
        return set(part.sensors[part.present].tolist())

    @pytest.mark.parametrize("number", range(5))
    def test_folds_share_no_step_and_no_vehicle(self, study, road, number):
        parts = study["traffic"].fold(road, 1.0, number)
        steps, ids = [self.steps(part) for part in parts], [self.ids(part) for part in parts]
        for one, other in [(0, 1), (0, 2), (1, 2)]:
            assert not steps[one] & steps[other]
            assert not ids[one] & ids[other]
        assert len(steps[0]) > 6000 and len(steps[1]) > 600 and len(steps[2]) == 2600

    def test_folds_test_everything_once(self, study, road):
        tested = [self.steps(study["traffic"].fold(road, 0.5, number).test) for number in range(5)]
        assert sum(map(len, tested)) == len(set().union(*tested)) == road.num_steps

    def test_the_papers_split(self, study, road):
        parts = study["traffic"].paper_split(road, 0.3)
        bounds = [(min(s), max(s)) for s in map(self.steps, parts)]
        assert bounds[0][1] < bounds[1][0] == 10_400 and bounds[1][1] < bounds[2][0] == 11_700
        # Each choice of reporting vehicles is another one.
        training = parts.training
        half = training.num_runs // 2
        assert (training.present[:half] != training.present[half:]).any()

    def test_more_tests_begin_with_the_usual_ones(self, study, road):
        usual, more = (study["traffic"].paper_split(road, 0.3, count).test for count in (2, 5))
        assert more.num_runs == 5
        reporting = [self.ids(more.runs(np.array([number]))) for number in range(5)]
        assert reporting[:2] == [self.ids(usual.runs(np.array([number]))) for number in range(2)]
        assert len(set(map(frozenset, reporting))) == 5


class TestPieces:
    def plan(self, study):
        return [piece for stage in study["run"].stages() for piece in stage]

    def test_have_names_of_their_own(self, study):
        pieces, plan = study["pieces"], self.plan(study)
        names = [piece.name for piece in plan]
        assert len(set(names)) == len(names)
        assert all(piece.guarantees for piece in plan)
        again = [*pieces.retested(), *pieces.guided_retested()]
        assert {piece.name for piece in again} <= set(names)
        assert all(set(pieces.LONG) <= set(piece.budgets) for piece in again)

    def test_a_part_of_the_study_is_trained_as_in_the_whole(self, study):
        part = [piece for stage in study["run"].stages(guided_alone=True) for piece in stage]
        assert part and set(map(repr, part)) < set(map(repr, self.plan(study)))
        # What the others are compared with needs no candidate that is not in the part.
        assert all(piece.guided or piece.features for piece in part)

    def test_are_trained_as_their_traffic_asks(self, study):
        for piece in self.plan(study):
            optimisation = study["run"].optimisation_of(piece)
            assert optimisation.num_updates == (2000 if piece.is_enlarged else 500 if piece.guided else 1000)
            assert optimisation.validate_every == (100 if piece.fold is None else optimisation.num_updates // 2)

    def test_features_are_chosen_among_those_of_their_kind(self, study, tmp_path):
        run, pieces = study["run"], study["pieces"]
        (tmp_path / "pieces").mkdir()
        candidates, rest = run.stages()
        for rival in candidates:
            # On US-101 alone the smallest d does best; with simulated traffic, and where f is guided, the largest.
            error = -rival.dimension if rival.is_enlarged or rival.guided else rival.dimension
            run.write(run.path_of(rival, tmp_path), {"designs": [{"validation_mse": 10.0 + error}]})
        for piece in rest:
            if piece.kind != "floor":
                tried = [d for _, d in pieces.CANDIDATES[piece.adjacency, piece.accounting]]
                chosen = run.choose(piece, tmp_path).dimension
                assert chosen == (max(tried) if piece.is_enlarged or piece.guided else min(tried))


@pytest.mark.results
class TestRecord:
    def test_the_page_quotes_its_results(self, study, results):
        page = (FOLDER / "README.md").read_text()
        assert study["report"].on_page(page, results) == page
        assert page.count("<!-- table") == len(study["report"].tables(results)) == 24

    def test_nobody_was_over_budget(self, results):
        tables = [results[name] for name in ("split", "folds", "sensitivity", "who_reports")]
        for part in (*tables, results["enlarged"]["tables"], results["guided"]["tables"]):
            rows = [row for kinds in part.values() for found in kinds.values() for row in found]
            assert rows and all(row["num_over_budget"] == 0 and row["most_spent"] <= row["budget"] for row in rows)

    def test_features_were_chosen_on_validation(self, study, results):
        best = {}
        for tried in results["choice"]:
            score = np.mean(np.log(list(tried["validation_mse"].values())))
            key = tried["adjacency"], tried["accounting"], tried["simulated_traffic"]
            best[key] = min(best.get(key, (np.inf, None)), (score, (tried["features"], tried["dimension"])))
        best = {key: chosen for key, (_, chosen) in best.items()}
        assert study["pieces"].CLASSICAL == {
            adjacency: best[adjacency, "total", False] for adjacency in results["split"]
        }
        assert best == {
            ("remove-one", "total", False): ("ball", 2),
            ("remove-one", "total", True): ("ball", 2),
            ("remove-one", "individual", False): ("ball", 2),
            ("remove-one", "individual", True): ("ball", 2),
            ("replace-one", "total", False): ("box", 1),
            ("replace-one", "total", True): ("box", 1),
            ("replace-one", "individual", False): ("orthant", 2),
            ("replace-one", "individual", True): ("orthant", 3),
        }

    def test_spending_where_it_matters_beats_the_classical_design(self, results):
        """The claims of the page, from the results that it quotes."""
        for adjacency, kinds in results["split"].items():
            for row in [*kinds["ppo"], *kinds["pathwise"]]:
                if row["budget"] <= 1.5:
                    assert row["difference_ci95"][1] < 0, (adjacency, row["budget"])
            for ppo, pathwise in zip(kinds["ppo"], kinds["pathwise"], strict=True):
                assert ppo["validation_mse"] < 1.05 * pathwise["validation_mse"]
        for kinds in results["folds"].values():
            assert all(row["difference_ci95"][1] < 0 for row in kinds["pathwise"])

    def test_simulated_traffic_beside_the_recording_makes_every_design_better(self, results):
        enlarged = results["enlarged"]["tables"]
        gains = {0.15: (0.825, 0.925), 0.3: (0.805, 0.865), 5.0: (0.675, 0.815)}  # remove-one, up to each budget
        for adjacency, kinds in results["split"].items():
            more = enlarged[f"{adjacency}, with simulated traffic"]
            for kind, rows in kinds.items():
                for new, row in zip(more[kind], rows, strict=True):
                    left = new["mse"] / row["mse"]
                    on_validation = new["validation_mse"] / row["validation_mse"]
                    if adjacency == "replace-one":
                        assert 0.795 < left < 0.995 and 0.845 < on_validation < 0.995
                    else:
                        least, most = next(bounds for budget, bounds in gains.items() if row["budget"] <= budget)
                        assert least < left < most and 0.815 < on_validation < 0.925
            assert all(
                row["difference_ci95"][1] < 0
                for kind in ("schedule", "ppo", "pathwise", "individual")
                for row in more[kind]
                if row["budget"] <= 1.5
            )
            for ppo, pathwise in zip(more["ppo"], more["pathwise"], strict=True):
                assert 0.96 < ppo["validation_mse"] / pathwise["validation_mse"] < 1.05
        kinds = enlarged["remove-one, with simulated traffic"]
        for rows in zip(*kinds.values(), strict=True):
            assert rows[-1]["mse"] <= 1.001 * min(row["mse"] for row in rows)  # individual accounts
        assert results["enlarged"]["floor"]["mse"] < 0.75 * results["floor"]["mse"]

    def test_features_that_follow_the_releases_are_worth_what_the_page_says(self, results):
        tables, margin = results["guided"]["tables"], 0.005
        bounds = {  # test and validation error over those of the same kind with the paper's f
            ("remove-one", "pathwise"): ((0.97, 1.03), (0.81, 0.85)),
            ("remove-one", "individual"): ((0.86, 0.93), (0.82, 0.89)),
            ("replace-one", "pathwise"): ((0.92, 0.97), (0.83, 0.87)),
            ("replace-one", "individual"): ((0.88, 0.92), (0.80, 0.87)),
        }
        unclear = []
        for (adjacency, kind), within in bounds.items():
            own = {row["budget"]: row for row in results["split"][adjacency][kind]}
            for row in tables[f"{adjacency}, the paper's split, guided"][f"{kind}, guided"]:
                for name, (least, most) in zip(("mse", "validation_mse"), within, strict=True):
                    assert least - margin <= row[name] / own[row["budget"]][name] < most + margin
                unclear += [(adjacency, kind, row["budget"])] * (row["difference_ci95"][1] >= 0)
        assert unclear == [
            ("remove-one", "pathwise", 1.5),
            ("replace-one", "pathwise", 0.5),
            ("replace-one", "pathwise", 1.5),
            ("replace-one", "individual", 1.5),
        ]
        alone = tables["remove-one, the paper's split, guided"]["classical, guided"]
        assert all(row["ratio"] == pytest.approx(1, abs=0.05) for row in alone)

    def test_what_was_asked_of_the_designs_is_met_on_us_101_alone(self, results):
        """Each at the budgets 0.15, 0.5 and 1.5, or 0.07 and 0.15."""
        split, tables = results["split"], results["guided"]["tables"]
        followed = {adjacency: tables[f"{adjacency}, the paper's split, guided"] for adjacency in split}

        def ratios(rows, *budgets):
            return [row["ratio"] for row in rows if row["budget"] in budgets]

        headline = 0.15, 0.5, 1.5
        assert np.less_equal(ratios(split["remove-one"]["pathwise"], *headline), (0.80, 0.87, 0.93)).all()
        assert np.less_equal(ratios(followed["replace-one"]["pathwise, guided"], *headline), (0.73, 0.81, 0.88)).all()
        assert np.less_equal(ratios(followed["remove-one"]["individual, guided"], 0.07, 0.15), (0.66, 0.67)).all()
        (minute,) = tables["remove-one, 300 steps, 30% report, guided"]["individual, guided"]
        assert minute["ratio"] <= 0.55

    def test_other_vehicles_that_report_make_it_harder_for_all(self, results):
        for title, kinds in results["who_reports"].items():
            most = 1.345 if "simulated" in title else 1.285
            rows = [row for found in kinds.values() for row in found]
            assert all(1.055 < row["mse"] / row["usual_mse"] < most for row in rows)
        unclear = [
            (title, kind, row["budget"])
            for title, kinds in results["who_reports"].items()
            for kind, rows in kinds.items()
            for row in rows
            if kind != "classical" and row["difference_ci95"][1] >= 0
        ]
        assert unclear == [("remove-one, 16 choices", "pathwise", 0.5)]

    def test_a_simulated_freeway_close_to_the_real_one_teaches_as_well(self, results):
        rows = results["sensitivity"]["trained on simulated traffic, give or take 10%"].values()
        assert all(row["ratio"] < 1.25 for found in rows for row in found)
