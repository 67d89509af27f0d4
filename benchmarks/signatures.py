"""Time of a signed release message beside one without a signature, and of checking a signature."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.timing import alternate, keep
from dpfuse.public.rows import Row, release_message
from dpfuse.public.signatures import Signer, make_key

REPEATS = 3000


def main() -> None:
    """Measure and write results/signatures.json."""
    row = Row.after(bytes(32), "main", 10**6, bytes(range(16)), 2**20, None, None)
    with tempfile.TemporaryDirectory() as folder:
        make_key(path := Path(folder) / "key")
        signer = Signer(path, "0" * 32, "f" * 64)
    signature = json.loads(signer.to_message(row).content)["signature"]
    tasks = {
        "message": lambda: release_message(row),
        "signed message": lambda: signer.to_message(row),
        "check": lambda: signer.signatory.has_signed(row, signature),
    }
    timings = {name: timing.to_dict() for name, timing in alternate(tasks, REPEATS).items()}
    keep("signatures", {"settings": {"dimension": 2, "repeats": REPEATS}, "ms": timings}, packages=["cryptography"])


if __name__ == "__main__":
    main()
