"""The case study: parts that share nothing, pieces that are told apart, and a page that quotes its results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfuse import Trajectories

FOLDER = Path(__file__).parents[1] / "experiments/us101"


@pytest.fixture(scope="module")
def study():
    """The modules of the experiment, by name."""
    sys.path.insert(0, str(FOLDER))
    try:
        import pieces
        import report
        import run
        import traffic

        yield {"pieces": pieces, "report": report, "run": run, "traffic": traffic}
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def results():
    return json.loads((FOLDER / "results.json").read_text())


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


class TestPieces:
    def test_have_names_of_their_own(self, study):
        pieces = study["pieces"]
        plan = [*pieces.candidates(), *study["run"].rest()]
        names = [piece.name for piece in plan]
        assert len(set(names)) == len(names)
        assert all(piece.guarantees for piece in plan)


class TestRecord:
    def test_the_page_quotes_its_results(self, study, results):
        page = (FOLDER / "README.md").read_text()
        assert study["report"].on_page(page, results) == page
        assert page.count("<!-- table") == len(study["report"].tables(results)) == 17

    def test_nobody_was_over_budget(self, results):
        for part in (results["split"], results["folds"], results["sensitivity"], results["enlarged"]["tables"]):
            rows = [row for kinds in part.values() for found in kinds.values() for row in found]
            assert rows and all(row["num_over_budget"] == 0 and row["most_spent"] <= row["budget"] for row in rows)

    def test_features_were_chosen_on_validation(self, results):
        best = {}
        for tried in results["choice"]:
            score = np.mean(np.log(list(tried["validation_mse"].values())))
            key = tried["adjacency"], tried["accounting"]
            best[key] = min(best.get(key, (np.inf, None)), (score, (tried["features"], tried["dimension"])))
        assert {key: chosen for key, (_, chosen) in best.items()} == {
            ("remove-one", "total"): ("ball", 2),
            ("remove-one", "individual"): ("ball", 2),
            ("replace-one", "total"): ("box", 1),
            ("replace-one", "individual"): ("orthant", 2),
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

    def test_simulated_traffic_beside_the_recording_makes_designs_better(self, results):
        enlarged = results["enlarged"]["tables"]
        for adjacency, kinds in results["split"].items():
            more = enlarged[f"{adjacency}, with simulated traffic"]
            for kind, rows in kinds.items():
                left = {row["budget"]: new["mse"] / row["mse"] for new, row in zip(more[kind], rows, strict=True)}
                if adjacency == "replace-one":
                    assert all(0.815 < over < 1.025 for over in left.values())
                else:
                    assert all((0.675 if budget >= 0.5 else 0.835) < over for budget, over in left.items())
                    assert all(over < (0.835 if budget >= 0.5 else 0.955) for budget, over in left.items())
            for row in [*more["ppo"], *more["pathwise"]]:
                assert row["difference_ci95"][1] < 0 or row["budget"] > 1.5
            for ppo, pathwise in zip(more["ppo"], more["pathwise"], strict=True):
                assert 0.94 < ppo["validation_mse"] / pathwise["validation_mse"] < 0.985
        assert results["enlarged"]["floor"]["mse"] < 0.75 * results["floor"]["mse"]

    def test_with_simulated_traffic_exploration_makes_no_clear_difference(self, results):
        enlarged = results["enlarged"]["tables"]
        for adjacency, kind, most in (("remove-one", "individual", 0.03), ("replace-one", "pathwise", 0.02)):
            title = f"{adjacency}, with simulated traffic"
            explored = {row["budget"]: row["validation_mse"] for row in enlarged[title][kind]}
            for row in enlarged[f"{title}, no exploration"][kind]:
                assert row["validation_mse"] == pytest.approx(explored[row["budget"]], rel=most)

    def test_a_simulated_freeway_close_to_the_real_one_teaches_as_well(self, results):
        rows = results["sensitivity"]["trained on simulated traffic, give or take 10%"].values()
        assert all(row["ratio"] < 1.25 for found in rows for row in found)
