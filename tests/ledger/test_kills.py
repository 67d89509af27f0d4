"""Writers of a ledger that are killed at random moments."""

from __future__ import annotations

import pytest

from dpfuse.ledger import public_rows
from support.ledger_kills import check_published, run_kills


def test_the_check_of_what_was_published_can_fail(closed_ledger, tmp_path):
    path, design = closed_ledger
    published = tmp_path / "published"
    lines = [f"{row.stream} {row.step} {row.release.hex()} {row.hash.hex()}" for row in public_rows(path)]
    published.write_text("\n".join(lines))
    check_published(path, published)
    for wrong, message in [
        ([*lines, lines[-1].replace(" 4 ", " 5 ")], "not in the ledger"),
        ([lines[0].replace("north 1 ", "north 1 0"), *lines], "released twice"),
        (lines[4:], "were never published"),
    ]:
        published.write_text("\n".join(wrong))
        with pytest.raises(AssertionError, match=message):
            check_published(path, published)


def test_kills_lose_no_release_and_no_debit(tmp_path):
    last_step, _ = run_kills(tmp_path / "ledger.db", tmp_path / "published", num_kills=6, longest_s=0.3, seed=0)
    assert last_step >= 3


@pytest.mark.slow
def test_three_hundred_kills_lose_no_release_and_no_debit(tmp_path):
    last_step, share = run_kills(tmp_path / "ledger.db", tmp_path / "published", num_kills=300, longest_s=0.2, seed=1)
    assert last_step > 300 and share > 0.5
