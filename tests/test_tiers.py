"""No check is lost between `make test` and `make test-all`: what only the second runs has a witness in the first."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_thorough_test_has_a_witness_in_the_fast_tier(tiers):
    """Of a run of a few files: that the file of the witness is there, and the witness in it if it was collected."""
    fast = {part for name, witness in tiers.items() if witness is None for part in (name, name.split("[")[0])}
    files = {name.split("::")[0] for name in tiers}
    witnesses = {name: witness for name, witness in tiers.items() if witness}
    without = {name: w for name, w in witnesses.items() if not (ROOT / w.split("::")[0]).is_file()}
    without |= {name: w for name, w in witnesses.items() if w.split("::")[0] in files and w not in fast}
    assert without == {}
