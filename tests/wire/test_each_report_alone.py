"""Each report by itself: what one sensor sends never changes what becomes of another sensor's report."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse.wire.intake import Intake
from dpfuse.wire.keys import Keys
from dpfuse.wire.messages import MAX_REPORT
from support.wire import NDJSON, SECRET, Recorder, Watch, make_report, rig

KEYS = Keys.from_secret(SECRET)
BAD_VALUES = ["NaN, 1", "1e999, 1", "-Infinity, 1", f"{'9' * 500}, 1", f"{'9' * 5000}, 1", '"fast"', "[[[[", "}", ""]


def line_of(sensor, values="0.5, -0.5", step=1):
    return json.dumps(make_report(KEYS, sensor, step=step)).replace("0.5, -0.5", values).encode()


@pytest.mark.parametrize("values", BAD_VALUES)
def test_one_bad_report_in_a_batch_of_600_costs_only_itself(tmp_path, values):
    """One NaN once lost the other 599: a body over 64 KiB that was not strict JSON was refused as a whole."""
    with rig(tmp_path, centre=Recorder()) as live:
        lines = [line_of(sensor, values if sensor == 300 else "0.5, -0.5") for sensor in range(600)]
        answer = live.call("POST", "/v1/reports", content=b"\n".join(lines), headers=NDJSON)
        assert answer.status_code == 202 and set(answer.json()["refused"]) <= {300}
        assert [sensor for _, sensor, *_ in live.centre.got if sensor != 300] == [s for s in range(600) if s != 300]


def taken(lines, cuts=()):
    """What reaches the centre of a body that arrives in pieces."""
    centre, body = Recorder(), b"".join(line + b"\n" for line in lines)
    places = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]

    async def chunks():
        for start, end in zip(places, places[1:], strict=False):
            yield body[start:end]

    asyncio.run(Intake(centre, KEYS).accept_stream(chunks(), Watch(centre, None)))
    return centre.got


LONG = [b"x" * (MAX_REPORT + 1), b" " * 3 * MAX_REPORT, b"\n\n\n", b"[" * MAX_REPORT]
batches = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=20)
# In place of a report: any bytes, or the sensor's own report with bad values or for another step.
corruptions = st.binary(max_size=40) | st.sampled_from([*LONG, *BAD_VALUES]) | st.integers(0, 9)


def corrupt(sensor, how):
    if isinstance(how, bytes):
        return how
    return line_of(sensor, how) if isinstance(how, str) else line_of(sensor, step=how)


@given(
    batches, st.integers(0, 4), st.none() | st.lists(corruptions, min_size=20, max_size=20), st.lists(st.integers(0))
)
def test_removing_or_corrupting_one_sensors_reports_changes_no_other_report(batch, culprit, corruptions, cuts):
    """In any batch, for any corruption, however the body is cut into pieces."""
    changed = [line_of(sensor, step=step) for sensor, step in batch if sensor != culprit]
    if corruptions is not None:
        changed = [
            corrupt(sensor, how) if sensor == culprit else line_of(sensor, step=step)
            for (sensor, step), how in zip(batch, corruptions, strict=False)
        ]
    expected = [("main", sensor, step, [0.5, -0.5]) for sensor, step in batch if sensor != culprit]
    assert [report for report in taken(changed, cuts) if report[1] != culprit] == expected
