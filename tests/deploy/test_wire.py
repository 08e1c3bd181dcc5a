"""What arrives is what was agreed, or it is refused in a sentence."""

import jax
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.deploy.wire import messages
from equipoise.deploy.wire.messages import RAW, Refusal, check_values, pack, unpack
from equipoise.protocol import Reply, wire
from tests.problems import EVERY, assert_identical, build, start, unequal

TREE = Reply(total=(np.float64(2.0), np.arange(3.0)), each={"rows": np.int32(7), "kept": np.array([True, False])})
LIKE = jax.tree.map(lambda a: jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype), TREE)


def test_there_and_back():
    assert_identical(unpack(pack(TREE), LIKE), TREE)
    assert {a.stype for a in pack(TREE).values()} == {RAW}  # never what np.load would read
    assert sorted(pack(TREE)) == [".each['kept']", ".each['rows']", ".total[0]", ".total[1]"]


@pytest.mark.parametrize("name", EVERY)
def test_every_message_of_every_algorithm(name):
    algorithm = build(name)
    rng = np.random.default_rng(0)
    for w in wire(algorithm, start(), algorithm.prepare(unequal().client(0))):
        for like in (w.message, w.reply):
            tree = jax.tree.map(lambda s: (10 * rng.normal(size=s.shape)).astype(s.dtype), like)
            assert_identical(unpack(pack(tree), like), tree)


def changed(name, **fields):
    record = pack(TREE)
    old = record[name]
    record[name] = Array(**{"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": old.data} | fields)
    return record


def without(name):
    record = pack(TREE)
    del record[name]
    return record


PICKLE = b"\x80\x04\x95\x00cos\nsystem\n(S'false'\ntR."


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (ConfigRecord({}), "arrays were expected, not ConfigRecord"),
        (None, "arrays were expected, not NoneType"),
        (without(".total[1]"), r"'.total\[1\]' is missing"),
        (ArrayRecord({**pack(TREE), "more": Array(np.ones(1))}), "'more' is not part of this message"),
        (changed(".total[1]", dtype="float32"), r"should be float64\[3\], not \('float32'"),
        (changed(".total[1]", shape=(4,)), r"should be float64\[3\]"),
        (changed(".total[1]", shape=(10**12,)), r"should be float64\[3\]"),
        (changed(".total[1]", stype="numpy.ndarray"), "should be"),
        (changed(".total[1]", dtype="object", data=PICKLE), "should be"),
        (changed(".total[1]", data=PICKLE), "has 28 bytes instead of 24"),
        (changed(".total[1]", data=b""), "has 0 bytes instead of 24"),
        (changed(".each['kept']", data=b"\x02\x00"), "neither true nor false"),
    ],
)
def test_anything_else_is_refused(record, sentence):
    with pytest.raises(Refusal, match=sentence):
        unpack(record, LIKE)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.one_of(st.sampled_from(sorted(pack(TREE))), st.text(max_size=5)),
        st.builds(
            Array,
            dtype=st.one_of(st.sampled_from(["float64", "int32", "bool", "object"]), st.text(max_size=5)),
            shape=st.lists(st.integers(-1, 4), max_size=2).map(tuple),
            stype=st.sampled_from([RAW, "numpy.ndarray", ""]),
            data=st.binary(max_size=40),
        ),
        max_size=5,
    )
)
def test_random_records_never_get_through_by_accident(arrays):
    """Either a refusal, or exactly the agreed shapes and types."""
    try:
        tree = unpack(ArrayRecord(arrays), LIKE)
    except Refusal:
        return
    for a, s in zip(jax.tree.leaves(tree), jax.tree.leaves(LIKE), strict=True):
        assert (a.shape, a.dtype) == (s.shape, s.dtype)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_truncated_and_flipped_bytes(data):
    """A cut is always seen; flipped bits are numbers of the right kind, which are then looked at for themselves."""
    name = data.draw(st.sampled_from(sorted(pack(TREE))))
    raw = pack(TREE)[name].data
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(Refusal):
        unpack(changed(name, data=raw[:cut]), LIKE)
    noise = data.draw(st.binary(min_size=len(raw), max_size=len(raw)))
    try:
        tree = unpack(changed(name, data=noise), LIKE)
        check_values(tree)
    except Refusal:
        return
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(tree))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_numbers_that_cannot_be_reckoned_with(bad):
    with pytest.raises(Refusal, match=r"'\[1\]' (is not finite|has numbers beyond 1e\+154)"):
        check_values((np.ones(2), np.array([0.0, bad])))
    with pytest.raises(Refusal, match="beyond 2e"):
        check_values(np.float32(1e30))


AT = messages.Address("train", "r1", 5, 0, "collect", 2, [1, 2], "", [], "abc")


def test_addresses_there_and_back():
    assert messages.read_address(RecordDict({"at": messages.address(AT)})) == AT


@pytest.mark.parametrize(
    "change",
    [
        {"run": "../../etc/passwd"},
        {"part": ""},
        {"run": "x" * 100},
        {"attempt": -1},
        {"attempt": True},
        {"round": 1.5},
        {"slot": "0"},
        {"key": [2**40]},
        {"key": 3},
        {"keep": "all"},
        {"since": 3},
        {"more": 1},
    ],
)
def test_addresses_that_make_no_sense_are_refused(change):
    with pytest.raises(Refusal):
        messages.read_address(RecordDict({"at": ConfigRecord(AT._asdict() | change)}))


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.one_of(st.sampled_from(messages.Address._fields), st.text(max_size=3)),
        st.one_of(st.integers(-(2**40), 2**40), st.text(max_size=9), st.floats(), st.binary(max_size=4), st.booleans()),
    )
)
def test_random_addresses_never_crash(fields):
    with pytest.raises(Refusal):
        messages.read_address(RecordDict({"at": ConfigRecord(fields)}))
