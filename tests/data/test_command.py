"""`dpfuse data`: what it prints, plots and writes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dpfuse
from support.command import run_dpfuse
from support.ngsim import ELSEWHERE, SECTION, put, write_broken, write_csv, write_parquet


@pytest.fixture
def run(capsys, monkeypatch):
    """`dpfuse data` with these arguments: exit code, stdout and stderr."""
    return lambda *arguments: run_dpfuse(capsys, monkeypatch, "data", *arguments)


class TestCommand:
    SECTION = ("--section", *SECTION)

    def test_it_prints_what_was_found_and_plots_it(self, run, traffic, folder, tmp_path):
        write_csv(folder / "a.csv", [*traffic, traffic[7] | {"v_Vel": 1.0}, *ELSEWHERE], site="us-101")
        (folder / "notes.txt").write_text("notes\n")
        code, out, err = run("us101", "--data", folder, *self.SECTION, "--out", tmp_path / "out")
        assert code == 0 and "a.csv" in err
        for text in ("60 vehicles from 07:49:40 to 07:50:39", "notes.txt holds no vehicle trajectories", "all"):
            assert text in out
        assert "1 duplicates disagree" in out and "5 rows of other sites were left out" in out
        for name in ("density.png", "space-time.png"):
            assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")

    def test_it_prints_one_json_object_and_saves_a_recording(
        self, run, traffic, recording, folder, tmp_path, monkeypatch
    ):
        write_parquet(folder / "a.parquet", traffic)
        monkeypatch.setenv("DPFUSE_DATA", str(folder))
        saved = tmp_path / "run.dpfuse-data"
        arguments = (*self.SECTION, "--out", tmp_path, "--save", saved, "--share", 0.5, "--interval", 0.1, "--json")
        code, out, err = run("us101", *arguments)
        assert (code, err) == (0, "")
        answer = json.loads(out)
        assert (answer["vehicles"], answer["sightings"]) == (60, len(traffic))
        written = dpfuse.Trajectories.load(saved)
        whole = recording.trajectories(SECTION, 0.1)
        np.testing.assert_array_equal(written.state, whole.state)
        assert answer["periods"][-1]["density_mean"] == pytest.approx(whole.state.mean(), rel=1e-6)
        assert 0 < written.present.sum() < 0.8 * whole.present.sum()
        again = run("us101", *arguments)
        assert again.exit_code == 2 and "exists; give --force" in again.error
        assert run("us101", *arguments, "--force").exit_code == 0

    def test_an_error_is_one_line(self, run, traffic, folder, tmp_path):
        write_broken(folder / "a.csv", traffic, 5, put("v_Vel", b"x"))
        code, out, err = run("us101", "--data", folder, "--out", tmp_path, "--json")
        assert (code, out) == (1, "") and err.count("\n") == 1 and "a.csv, line 5: v_vel" in err
        code, _, err = run("us101", "--data", folder / "nowhere", "--json")
        assert code == 1 and "no folder or file at" in err
