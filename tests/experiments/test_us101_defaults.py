"""The study of US-101 with default settings: its jobs, and results of which a part is missing."""

from __future__ import annotations

from dpfuse import Architecture, Optimisation
from experiments.running import write_json
from experiments.us101.jobs import path_of
from experiments.us101_defaults import jobs, report, tables, train


class TestJobs:
    PLAN = jobs.plan()

    def test_every_job_has_a_name_of_its_own(self):
        names = [job.name for job in self.PLAN]
        assert len(set(names)) == len(names)
        assert all(job.guarantees for job in self.PLAN)

    def test_designs_are_trained_with_the_defaults_but_for_the_number_of_updates(self):
        main = [*jobs.split(), *jobs.floors()]
        for job in self.PLAN:
            own = train.optimisation_of(job, None)
            # A fold's validation part is short, so that weights are compared there less often.
            every = 100 if job.fold is None else 250
            assert own == Optimisation(num_updates=own.num_updates, validate_every=every)
            assert own.num_updates == (700 if job.horizon is None else 2000 if job in main else 1000)
            assert job.architecture == Architecture(recurrent_filter=job.recurrent_filter)
            assert job.recurrent_filter is None or job in jobs.filters()


def test_results_name_every_aim_and_leave_out_jobs_that_are_not_done(tmp_path):
    finite = [job for job in (*jobs.split(), *jobs.filters(), *jobs.recorded(), jobs.floors()[1])]
    for job in (*finite, *jobs.endless(), jobs.floors()[0]):
        num_windows = 32 if job.horizon else 16
        rows = [
            {
                "budget": None if job.kind == "floor" else budget,
                "mse": 100.0,
                "mse_per_step": [1.0, 2.0],
                "budget_per_step": [0.1, 0.1],
                "validation_mse": 90.0,
                "coverage": 0.95,
                "prior_mse": 1900.0,
                "epsilon": 3.0,
                "budget_spent_max": budget,
                "within_budget": True,
                "window_errors": [50.0] * (num_windows // 8) + [100.0] * (num_windows * 7 // 8),
                "window_starts": list(range(num_windows)),
            }
            for budget in (job.budgets if job.kind != "floor" else (0.0,))
            for _ in range(2)
        ]
        write_json(path_of(job, tmp_path), {"job": job.name, "designs": rows, "training_s": 1.0, "test_s": 1.0})
    results = report.collect(tmp_path)
    assert results["folds"] == {} and tables.folds(results) == "Not run yet.\n"
    assert results["split"]["remove-one"]["individual"][0]["few_mse"] == 50.0
    assert "| without end, B = 0.07 | 165 | 94 | met |" in tables.aims(results)
    assert "| without end, floor | 86 | 94 | **missed** |" in tables.aims(results)
    assert "| individual, folds, B = 0.5 | 209 |  | not run |" in tables.aims(results)
    for table in (tables.split, tables.endless, tables.filters, tables.recorded):
        assert "94" in table(results)
