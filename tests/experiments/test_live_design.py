"""`make live-design`: SUMO is asked for before hours of training, and only where it is needed."""

from __future__ import annotations

from experiments.live.run import needs_sumo, path_of, path_of_recording


def test_sumo_is_needed_for_the_tests_and_for_its_own_design_without_recordings(tmp_path):
    assert needs_sumo(None, tmp_path) and needs_sumo("sumo", tmp_path)
    assert not needs_sumo("design", tmp_path) and not needs_sumo("floor", tmp_path)
    for part in ("training", "validation"):
        assert needs_sumo("sumo", tmp_path)
        path_of_recording(f"sumo-{part}", tmp_path).touch()
    assert not needs_sumo("sumo", tmp_path)


def test_sumo_is_not_needed_for_a_design_that_is_trained(tmp_path):
    path_of("sumo", tmp_path).touch()
    assert not needs_sumo("sumo", tmp_path)
