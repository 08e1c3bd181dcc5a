import json

import numpy as np
import pytest

from equipoise.data import catalogue, text
from equipoise.errors import InputError

PLAY = """\
THE MOUSE

Persons

KING, a mouse.

ACT I.

SCENE I. A pantry.

[Enter KING and QUEEN.]

KING.
Who ate the cheese? [Aside.] It was I.
I shall not say.

QUEEN.
Not I, my lord.

[A noise.]

Nor I did hear of it.

Saddle my horse.
And bring it here.

KING.
Then who?

FIRST CAT.
Miaow.

SCENE II. A cellar.

KING
Again!
"""
SHORT = """\
ACT I.

Ham.
To be.

Serv.
My lord?

So let it be.
And then the end.

Ham.
Or not.
"""


def decode(codes):
    return "".join(text.LETTERS[int(code)] for code in codes)


def test_a_play_is_taken_apart():
    roles = text.spoken(PLAY)
    assert roles == {
        "KING": ["Who ate the cheese? It was I. I shall not say.", "Then who?", "Again!"],
        "QUEEN": ["Not I, my lord. Nor I did hear of it. Saddle my horse. And bring it here."],
        "FIRST CAT": ["Miaow."],
    }


def test_short_names_and_verse_that_looks_like_one():
    roles = text.spoken(SHORT)
    assert roles == {"HAM": ["To be.", "Or not."], "SERV": ["My lord? So let it be. And then the end."]}


def test_letters_there_and_back():
    assert len(text.LETTERS) == 80
    assert decode(text.encode('A [mouse], "ate";\n 12 > 3? }')) == 'A [mouse], "ate";\n 12 > 3? }'
    assert decode(text.encode("{é→}")) == "  ?}"  # what LEAF's alphabet lacks


def long_play(roles, turns=6):
    said = [f"{role}.\nLine {i} of {role.lower()}, said at some length here.\n" for i in range(turns) for role in roles]
    return "ACT I.\n\n" + "\n".join(said)


def test_windows_and_owners(tmp_path):
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "mouse.txt").write_text(long_play(["KING", "QUEEN"]))
    (tmp_path / "shakespeare" / "cat.txt").write_text(long_play(["CAT"]) + "\nDOG.\nOnly once.\n")
    data = text.shakespeare(data_dir=tmp_path, window=20, stride=3, min_characters=100)
    assert data.group_names == ("cat: CAT", "mouse: KING", "mouse: QUEEN")
    assert data.inputs.dtype == np.uint8
    assert data.inputs.shape[1] == 20
    own = data.inputs[data.groups == 1]
    whole = " ".join(text.spoken(long_play(["KING", "QUEEN"]))["KING"])
    cut = round(len(whole) * 0.8)
    assert decode(own[0]) == whole[:20]
    assert decode(own[1]) == whole[3:23]
    assert decode([data.labels[data.groups == 1][1]]) == whole[23]
    assert len(own) == (cut - 21) // 3 + 1
    tests = data.test_inputs[data.test_groups == 1]
    assert decode(tests[0]) == whole[cut : cut + 20]  # no character in both sets
    assert set(data.test_groups.tolist()) == {0, 1, 2}


def test_roles_that_say_too_little(tmp_path):
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "mouse.txt").write_text(PLAY)
    with pytest.raises(InputError, match=r"no role in .* has two turns and 2000 characters"):
        text.shakespeare(data_dir=tmp_path)
    with pytest.raises(InputError, match="window and stride"):
        text.shakespeare(data_dir=tmp_path, stride=0)
    with pytest.raises(InputError, match="between 0 and 1"):
        text.shakespeare(data_dir=tmp_path, test=0.0)
    (tmp_path / "shakespeare" / "mouse.txt").write_bytes(b"ACT I.\n\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"mouse\.txt cannot be read"):
        text.shakespeare(data_dir=tmp_path)


def leaf(users):
    return json.dumps({"users": list(users), "num_samples": [len(u["y"]) for u in users.values()], "user_data": users})


def test_leaf_json(tmp_path):
    for part in ("train", "test"):
        (tmp_path / "shakespeare" / "data" / part).mkdir(parents=True)
    at = tmp_path / "shakespeare" / "data"
    (at / "train" / "a.json").write_text(leaf({"MACBETH": {"x": ["To morrow", "o morrow "], "y": [" ", "a"]}}))
    (at / "train" / "b.json").write_text(
        leaf({"BANQUO": {"x": ["Good nigh"], "y": ["t"]}, "NOBODY": {"x": [], "y": []}})
    )
    tests = {"BANQUO": {"x": ["hear me s"], "y": ["p"]}, "MACBETH": {"x": ["and fury,"], "y": [" "]}}
    (at / "test" / "a.json").write_text(leaf(tests))
    data = text.shakespeare(data_dir=tmp_path)
    assert data.group_names == ("BANQUO", "MACBETH")
    assert decode(data.inputs[0]) == "Good nigh"
    assert decode(data.labels) == "t a"
    assert data.groups.tolist() == [0, 1, 1]
    assert decode(data.test_inputs[1]) == "and fury,"

    (at / "test" / "a.json").write_text(leaf({"BANQUO": {"x": ["hear me s"], "y": []}}))
    with pytest.raises(InputError, match=r"a\.json cannot be read \(BANQUO has 1 windows and 0 labels"):
        text.shakespeare(data_dir=tmp_path)
    (at / "test" / "a.json").write_text("{")
    with pytest.raises(InputError, match=r"a\.json cannot be read"):
        text.shakespeare(data_dir=tmp_path)
    (at / "test" / "a.json").write_text(leaf({"WITCH": {"x": ["hear me s"], "y": ["p"]}}))
    with pytest.raises(InputError, match="no user is in both"):
        text.shakespeare(data_dir=tmp_path)


def test_nothing_there(tmp_path):
    for download in (False, True):
        with pytest.raises(InputError, match=r"put one \.txt per play, or LEAF's folders"):
            text.shakespeare(data_dir=tmp_path, download=download)


def test_the_real_plays():
    if catalogue.where("shakespeare") is None:
        pytest.skip("the plays are not in the data directory (set EQUIPOISE_DATA)")
    data = text.shakespeare()
    assert 400 < len(data.group_names) < 700
    assert any("hamlet" in name for name in data.group_names)
