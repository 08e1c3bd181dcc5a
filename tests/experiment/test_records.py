import hashlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import InputError
from equipoise.experiment import checkpoint, records
from equipoise.experiment.records import Row

NUMBERS = st.one_of(st.none(), st.floats())


def row(**changes):
    start = {"round": 1, "seconds": 0.5, "asked": (2,), "answered": (1,), "broken": 0, "bytes_down": 8, "bytes_up": 8,
             "loss": (1.0,), "scores": {"accuracy": (0.5,)}}  # fmt: skip
    return Row(**{**start, **changes})


@given(st.lists(NUMBERS, max_size=4), st.lists(NUMBERS, max_size=4), NUMBERS)
def test_a_row_survives_bit_for_bit_and_what_is_not_finite_is_null(losses, lam, gap):
    made = row(loss=tuple(losses), lam=tuple(lam), gap=gap)
    assert Row.model_validate_json(made.model_dump_json()) == made
    for given_, kept in zip(losses, made.loss, strict=True):
        assert kept is None if given_ is None or not math.isfinite(given_) else kept == given_


def test_a_torn_line_is_not_read_and_the_history_can_be_cut(tmp_path):
    path = tmp_path / "history.jsonl"
    lines = "".join(records.append_row(path, row(round=k)) for k in (0, 5))
    records.append_row(path, row(round=10))
    with path.open("a") as file:
        file.write('{"round": 15, ')
    assert [r.round for r in records.read_rows(path)] == [0, 5, 10]
    known = checkpoint.Written(length=len(lines), digest=hashlib.sha256(lines.encode()).hexdigest())
    assert checkpoint.cut(path, known) == lines.encode() == path.read_bytes()
    path.write_text(lines.replace("0.5", "0.6"))
    with pytest.raises(InputError, match="is not the history that the checkpoint goes on from"):
        checkpoint.cut(path, known)


def test_damage_is_a_sentence(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"round": "many"}\n')
    with pytest.raises(InputError, match=r"history.jsonl cannot be read \(round: .*damaged or of another version"):
        records.read_rows(path)
    with pytest.raises(InputError, match="is not a run folder"):
        records.read(tmp_path)
    with pytest.raises(InputError, match="holds no runs"):
        records.find(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        records.find(tmp_path / "gone")
