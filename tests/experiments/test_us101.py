"""The case study: parts of the recording share nothing, and every job is trained as it should be."""

from __future__ import annotations

import numpy as np
import pytest

from dpfuse import Trajectories
from dpfuse.sweeps import SweepResult
from experiments.running import write_json
from experiments.us101 import job_results, jobs, traffic, train
from sweeps.conftest import pretend_report


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
    def test_folds_share_no_step_and_no_vehicle(self, road, number):
        parts = traffic.fold(road, 1.0, number)
        steps, ids = [self.steps(part) for part in parts], [self.ids(part) for part in parts]
        for one, other in [(0, 1), (0, 2), (1, 2)]:
            assert not steps[one] & steps[other]
            assert not ids[one] & ids[other]
        assert len(steps[0]) > 6000 and len(steps[1]) > 600 and len(steps[2]) == 2600

    def test_every_step_is_tested_in_exactly_one_fold(self, road):
        tested = [self.steps(traffic.fold(road, 0.5, number).test) for number in range(5)]
        assert sum(map(len, tested)) == len(set().union(*tested)) == road.num_steps

    def test_the_papers_split_is_80_10_10_by_time(self, road):
        parts = traffic.paper_split(road, 0.3)
        bounds = [(min(s), max(s)) for s in map(self.steps, parts)]
        assert bounds[0][1] < bounds[1][0] == 10_400 and bounds[1][1] < bounds[2][0] == 11_700
        # Each choice of reporting vehicles is another one.
        training = parts.training
        half = training.num_runs // 2
        assert (training.present[:half] != training.present[half:]).any()

    def test_more_choices_of_reporting_vehicles_begin_with_the_usual_ones(self, road):
        usual, more = (traffic.paper_split(road, 0.3, count).test for count in (2, 5))
        assert more.num_runs == 5
        reporting = [self.ids(more.runs(np.array([number]))) for number in range(5)]
        assert reporting[:2] == [self.ids(usual.runs(np.array([number]))) for number in range(2)]
        assert len(set(map(frozenset, reporting))) == 5


class TestJobs:
    PLAN = [job for stage in jobs.stages() for job in stage]

    def test_every_job_has_a_name_of_its_own(self):
        names = [job.name for job in self.PLAN]
        assert len(set(names)) == len(names)
        assert all(job.guarantees for job in self.PLAN)
        again = [*jobs.retested(), *jobs.guided_retested()]
        assert {job.name for job in again} <= set(names)
        assert all(set(jobs.LONG) <= set(job.budgets) for job in again)

    def test_the_guided_part_is_trained_as_in_the_whole_study(self):
        part = [job for stage in jobs.stages(only_guided=True) for job in stage]
        assert part and set(map(repr, part)) < set(map(repr, self.PLAN))
        # The classical designs beside them need no candidate of the other parts.
        assert all(job.guided or job.features for job in part)

    def test_the_number_of_updates_follows_the_training_data_and_f(self):
        for job in self.PLAN:
            optimisation = train.optimisation_of(job)
            assert optimisation.num_updates == (2000 if job.is_enlarged else 500 if job.guided else 1000)
            assert optimisation.validate_every == (100 if job.fold is None else optimisation.num_updates // 2)

    def test_features_are_chosen_among_those_of_the_same_kind_and_traffic(self, tmp_path):
        candidates, rest = jobs.stages()
        for rival in candidates:
            # On US-101 alone the smallest d does best; with simulated traffic, and where f is guided, the largest.
            error = -rival.dimension if rival.is_enlarged or rival.guided else rival.dimension
            write_json(jobs.path_of(rival, tmp_path), {"designs": [{"validation_mse": 10.0 + error}]})
        for job in rest:
            if job.kind != "floor":
                tried = [d for _, d in jobs.CANDIDATES[job.adjacency, job.accounting]]
                chosen = train.choose(job, tmp_path).dimension
                assert chosen == (max(tried) if job.is_enlarged or job.guided else min(tried))


def test_files_of_jobs_hold_what_the_sweep_found_and_new_ones_make_later_tests_void(tmp_path):
    job = next(job for job in jobs.headline() if job.kind == "classical")
    later = jobs.path_of(job, tmp_path / jobs.WHO_REPORTS)
    guarantees = [guarantee for guarantee in job.guarantees if guarantee.budget in (0.5, 1.5)]
    common = {"setting": job.name, "validation_mse": 4.0, "device": "1 x cpu", "training_s": 2.0, "test_s": 1.0}
    for design, is_there in (("one", False), ("one", True), ("another", False)):
        rows = [common | {"budget": g.budget, "seed": s, "design": f"{design}{s}"} for g in guarantees for s in (0, 1)]
        reports = [pretend_report(guarantee, seed) for guarantee in guarantees for seed in (0, 1)]
        job_results.write_jobs(SweepResult(rows, reports, [], tmp_path), [job], tmp_path)
        assert later.exists() == is_there
        write_json(later, {})
    found = job_results.JobResults(tmp_path, job)
    assert [row["mse"] for row in found.rows()] == pytest.approx([3.05, 1 + 1 / 1.5 + 0.05])
    assert job_results.first_design(job, 1.5, tmp_path)["design"] == "another0"
