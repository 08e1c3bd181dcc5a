"""What importing costs beyond JAX's own: `python -m benchmarks.import_time`.

User seconds of a process of its own, the median of three; programs and bytecode are on the disk.
"""

import resource
import statistics
import subprocess
import sys

LIBRARY = "import equipoise as eq; eq.simulate, eq.algorithms, eq.objectives, eq.tasks, eq.cohorts, eq.data"
IMPORTS = {
    "jax": "import jax",
    "equipoise": "import equipoise",
    "equipoise, with all that an algorithm needs": LIBRARY,
    "the commands": "import equipoise.cli",
}


def seconds(code: str) -> float:
    """User and system seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    found = {name: statistics.median(seconds(code) for _ in range(3)) for name, code in IMPORTS.items()}
    for name, value in found.items():
        print(f"{name}: {value:.2f} s, {value - found['jax']:+.2f} s beyond JAX")


if __name__ == "__main__":
    main()
