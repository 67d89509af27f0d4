"""Coverage-guided fuzzing of what parses bytes from strangers, with atheris; `make fuzz` runs it for ten minutes.

    PYTHONPATH=tests python -m support.fuzz --seconds 600
    PYTHONPATH=tests python -m support.fuzz --inputs 20000 --record

Each target has a process of its own: libFuzzer ends it at an error, at an input that takes longer than half a minute,
and when it has more memory than allowed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("archive", "message", "mqtt", "event", "settings", "witness", "file", "http")
MAX_MB = 3000
_MAX_LENGTH = 20_000
_LONGEST_S = 30
# Everything that reads what strangers send. JAX is left as it is: its code is not ours, and slow when instrumented.
_INSTRUMENTED = ["dpfuse._archive", "dpfuse.wire", "dpfuse.public", "dpfuse.remote", "dpfuse.policy.structure", "h11"]
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")
_COVERED, _MEMORY = re.compile(r"cov: (\d+)"), re.compile(r"rss: (\d+)Mb")


def run(name, *, inputs=None, seconds=None, seed=1, first=""):
    """Fuzz one target in a process of its own, until a number of inputs or of seconds.

    Args:
        first: code to run in that process before anything else.

    Returns:
        numbers of inputs, of covered places and of megabytes.

    Raises:
        AssertionError: an input was found that breaks the rules; the text holds it.
    """
    with tempfile.TemporaryDirectory() as folder:
        limits = [f"-runs={inputs or -1}", f"-max_total_time={seconds or 0}", f"-seed={seed}", f"-timeout={_LONGEST_S}"]
        limits += [f"-rss_limit_mb={MAX_MB}", f"-max_len={_MAX_LENGTH}", f"-artifact_prefix={folder}/"]
        code = f"{first}\nfrom support.fuzz import child; child({name!r}, {folder!r}, {limits!r})"
        began_at = time.monotonic()
        # By way of a shell: Linux counts the peak of a parent's memory as that of the program that it starts.
        shell = ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, code]
        done = subprocess.run(shell, capture_output=True, text=True, env=_environment())
        text = done.stderr + done.stdout  # the second holds the traceback of an error
        found = _DONE.search(text)
        if done.returncode or found is None:
            kept = [path.read_bytes()[:2000] for path in Path(folder).glob("*-*") if path.is_file()]
            raise AssertionError(f"{name}: {kept}\n{text[-6000:]}")
        return {
            "inputs": int(found[1]),
            "seconds": round(time.monotonic() - began_at),
            "covered": max(map(int, _COVERED.findall(text)), default=0),
            "megabytes": max(map(int, _MEMORY.findall(text)), default=0),
        }


def child(name, folder, limits):
    """In the process of a target."""
    import atheris

    (corpus := Path(folder) / "corpus").mkdir()
    with atheris.instrument_imports(include=_INSTRUMENTED, enable_loader_override=False):
        from support import fuzz_targets
    with tempfile.TemporaryDirectory() as place, fuzz_targets.TARGETS[name](Path(place)) as (check, seeds):
        for number, one in enumerate(seeds):
            (corpus / str(number)).write_bytes(one)
        atheris.Setup([name, *limits, str(corpus)], lambda data: check(data or b"\0"))
        atheris.Fuzz()  # ends the process


def mutations(seeds, count, seed):
    """Inputs without coverage: the seeds, and copies with bytes changed, cut out, doubled or joined."""
    coin = random.Random(seed)
    yield from seeds
    for _ in range(count):
        data = bytearray(coin.choice(seeds))
        for _ in range(coin.randint(1, 4)):
            start = coin.randrange(len(data) + 1)
            end = min(len(data), start + coin.choice((0, 1, 1, 2, 8, 100)))
            piece = coin.choice((b"", coin.randbytes(1), coin.randbytes(9), bytes(data[start:end]) * 2, b"9" * 30))
            data[start:end] = piece
        yield bytes(data) or b"\0"


def _environment():
    root = Path(__file__).parents[2]
    paths = [str(root / "tests"), str(root / "src"), str(root)]
    # Equal hashes, so that equal seeds lead to equal inputs.
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0"}


def main():
    """Fuzz all targets and print what each has done."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seconds", type=int, help="for all targets together")
    options.add_argument("--inputs", type=int, help="for each target")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", choices=NAMES, action="append")
    options.add_argument("--record", action="store_true", help="write benchmarks/results/fuzz.json")
    chosen = options.parse_args()
    names, found = chosen.only or NAMES, {}
    for name in names:
        share = chosen.seconds and max(1, chosen.seconds // len(names))
        found[name] = run(name, inputs=chosen.inputs, seconds=share, seed=chosen.seed)
        print(name, found[name], flush=True)
    if chosen.record:
        from benchmarks.timing import keep

        settings = {"inputs": chosen.inputs, "seconds": chosen.seconds, "limit_megabytes": MAX_MB}
        command = f"PYTHONPATH=tests python -m support.fuzz --inputs {chosen.inputs} --record"
        results = {"settings": settings, "targets": found, "inputs": sum(one["inputs"] for one in found.values())}
        keep("fuzz", results, seeds=[chosen.seed], command=command, packages=["atheris", "cryptography", "h11"])


if __name__ == "__main__":
    main()
