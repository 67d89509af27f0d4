"""What every reader of a published recording does: one suite for all layouts."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import dpfuse
from support.command import run_dpfuse
from support.recordings import LAYOUTS, SECRET

pytestmark = pytest.mark.parametrize("layout", LAYOUTS, ids=[layout.name for layout in LAYOUTS])
LINE = 9


@pytest.fixture
def path(layout, folder):
    return layout.write(folder)


class TestReading:
    def test_the_state_is_what_a_count_by_hand_gives(self, layout, path):
        made = layout.read_section(path).trajectories
        state, expected = made.state[0, :, 0], layout.state()
        assert made.num_runs == 1 and (len(state) == len(expected) or layout.ends_early)
        assert len(state) > 0.8 * len(expected)
        np.testing.assert_allclose(state, expected[: len(state)], rtol=1e-5)

    def test_the_state_is_made_of_the_measurements(self, layout, path):
        made = layout.read_section(path).trajectories
        if layout.section:
            start, end = layout.section
            np.testing.assert_allclose(made.state[..., 0], made.present.sum(-1) * 1000 / (end - start), rtol=1e-6)
            position, speed = made.measurements[made.present].T
            assert position.min() >= 0 and position.max() < end - start
            assert 10 <= speed.min() and speed.max() <= 14
        else:
            total = (made.measurements[..., 0] * made.present).sum(-1)
            np.testing.assert_allclose(made.state[..., 0], total / made.present.sum(-1), rtol=1e-5)

    @pytest.mark.parametrize("every", [2, 3])
    def test_a_longer_interval_takes_fewer_steps(self, layout, path, every):
        first = layout.read_section(path).trajectories
        made = layout.read_section(path, interval_s=every * first.interval_s).trajectories
        assert made.interval_s == pytest.approx(every * first.interval_s)
        state = first.state[0, :, 0]
        if layout.section:
            np.testing.assert_array_equal(made.state[0, :, 0], state[::every])
        else:
            # Means over the half hours of a step.
            assert made.num_steps == len(state) // every
            assert made.state.mean() == pytest.approx(state.mean(), rel=1e-2)

    def test_a_shorter_interval_is_refused(self, layout, path):
        with pytest.raises(ValueError, match=r"interval_s must be (at least|a multiple of) [0-9.]+.*, got 0.1"):
            layout.read_section(path, interval_s=0.1)

    def test_the_size_of_blocks_changes_nothing(self, layout, path, tmp_path, monkeypatch):
        options = {"cache": tmp_path / "other"} if layout.ends_early else {}
        whole = layout.read_section(path, **options)
        for module in ("_layouts", "_sumo_xml"):
            monkeypatch.setattr(f"dpfuse.data.{module}._BLOCK_BYTES", 2048)
            monkeypatch.setattr(f"dpfuse.data.{module}._BATCH_ROWS", 50)
        parts = layout.read_section(path)
        for name in ("state", "measurements", "present", "sensors"):
            np.testing.assert_array_equal(getattr(whole.trajectories, name), getattr(parts.trajectories, name))
        assert whole.summary == parts.summary and whole.files == parts.files

    def test_a_folder_is_read_like_its_file(self, layout, path, folder):
        one, other = layout.read_section(path), layout.read_section(folder)
        np.testing.assert_array_equal(one.trajectories.state, other.trajectories.state)
        assert [file.path for file in other.files] == [path]

    def test_runs_of_a_chosen_length_are_made(self, layout, path):
        made = layout.read_section(path, steps=20).trajectories
        assert made.num_steps == 20 and made.num_runs > 2

    def test_progress_is_shown_on_stderr_only(self, layout, path, capsys):
        layout.read_section(path, progress=True)
        shown = capsys.readouterr()
        assert path.name in shown.err and shown.out == ""
        layout.read_section(path)
        assert capsys.readouterr() == ("", "")


class TestBroken:
    @pytest.mark.parametrize("number", [LINE, 120])
    def test_the_wrong_line_and_column_are_named_and_no_value_is_shown(self, layout, path, number):
        layout.spoil_row(path, number)
        message = f"^{re.escape(str(path))}, (line|row) {number}: {re.escape(layout.column)} must be "
        with pytest.raises(dpfuse.FileRefused, match=message) as caught:
            layout.read_section(path)
        assert SECRET not in str(caught.value)

    def test_a_file_that_is_cut_short_is_refused(self, layout, path):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(dpfuse.FileRefused, match=re.escape(str(path))):
            layout.read_section(path)

    def test_an_empty_file_is_refused(self, layout, path):
        path.write_bytes(b"")
        with pytest.raises(dpfuse.FileRefused, match=re.escape(str(path))):
            layout.read_section(path)

    def test_a_missing_or_empty_folder_is_refused(self, layout, tmp_path, monkeypatch):
        (tmp_path / "empty").mkdir()
        with pytest.raises(dpfuse.DatasetMissing, match=f"in {re.escape(str(tmp_path))}/empty"):
            layout.read_section(tmp_path / "empty")
        with pytest.raises(dpfuse.DatasetMissing, match="no folder or file at .*nowhere"):
            layout.read_section(tmp_path / "nowhere")
        monkeypatch.delenv("DPFUSE_DATA", raising=False)
        with pytest.raises(dpfuse.DatasetMissing, match="set the environment variable DPFUSE_DATA"):
            layout.read_section(None)


class TestCommands:
    def test_the_command_prints_plots_and_saves(self, layout, path, tmp_path, capsys, monkeypatch):
        saved, out = tmp_path / "a.dpfuse-data", tmp_path / "out"
        arguments = ("data", *layout.options(path), "--out", out, "--save", saved, "--share", 1.0)
        code, text, err = run_dpfuse(capsys, monkeypatch, *arguments)
        assert code == 0 and path.name in text and path.name in err and str(saved) in text
        figures = list(out.iterdir())
        assert len(figures) == 2 and all(each.read_bytes().startswith(b"\x89PNG") for each in figures)
        loaded, made = dpfuse.Trajectories.load(saved), layout.read_section(path).trajectories
        np.testing.assert_array_equal(loaded.state, made.state)
        assert loaded.present.sum() == made.present.sum()
        assert run_dpfuse(capsys, monkeypatch, *arguments).exit_code == 2
        code, text, err = run_dpfuse(capsys, monkeypatch, *arguments, "--force", "--json")
        assert (code, err) == (0, "") and json.loads(text)["steps"] == made.num_steps

    def test_an_error_is_one_line(self, layout, path, tmp_path, capsys, monkeypatch):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        code, text, err = run_dpfuse(capsys, monkeypatch, "data", *layout.options(path), "--json")
        assert (code, text) == (1, "") and err.count("\n") == 1 and str(path) in err
