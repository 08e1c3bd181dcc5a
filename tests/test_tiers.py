"""No check is lost between `make test` and `make test-all`: what only the second runs has a witness in the first."""

import pytest


def test_every_thorough_test_has_a_witness_in_the_fast_tier(tiers):
    fast = {part for name, witness in tiers.items() if witness is None for part in (name, name.split("[")[0])}
    files = {name.split("::")[0] for name in tiers}
    found = {name: witness for name, witness in tiers.items() if witness and witness.split("::")[0] in files}
    if not found:
        pytest.skip("only a run of all files knows both tiers")
    assert {name: witness for name, witness in found.items() if witness not in fast} == {}
