"""Shakespeare's roles, each predicting the next character of its own lines.

LEAF (Caldas et al. 2018): a client is a role in a play, an example is 80 characters and the one that follows.
"""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np

from equipoise.data.dataset import Dataset
from equipoise.data.datasets import catalogue
from equipoise.data.datasets.catalogue import Where, reading
from equipoise.errors import require

# LEAF's alphabet, in its order
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
CODES = np.full(256, LETTERS.index(" "), np.uint8)
CODES[[ord(c) for c in LETTERS]] = np.arange(len(LETTERS))

BEGINS = re.compile(r"^\s*(ACT|SCENE|PROLOGUE|INDUCTION)\b", re.IGNORECASE)
NUMERAL = re.compile(r"^[IVX]+\.?$")
LOUD = re.compile(r"^[A-Z0-9][A-Z0-9 .,'&-]*\.?$")  # MACBETH. or, in one play, THESEUS
QUIET = re.compile(r"^[A-Z0-9][\w ,'&-]*\.$")  # Ham.
Windows = tuple[np.ndarray, np.ndarray]  # and the character that follows each
DIRECTION = re.compile(r"\[[^\]]*\]")


def shakespeare(
    *,
    window: int = 80,
    stride: int = 10,
    test: float = 0.2,
    min_characters: int = 2000,
    data_dir: Where = None,
    download: bool = False,
) -> Dataset:
    """Inputs are `window` character numbers, the label is the next one; groups are "play: role".

    From plain text, windows begin every `stride` characters (LEAF: every one) and the last share `test` of a
    role's lines is the test set, so that no character is in both; roles with one turn or fewer than
    `min_characters` are left out. LEAF's JSON is taken as it is.
    """
    folder = catalogue.folder_of("shakespeare", data_dir, download)
    if (folder / "train").is_dir():
        # LEAF's {"users": [...], "user_data": {user: {"x": [80 characters, ...], "y": [character, ...]}}}
        tables = [_users(folder / part) for part in ("train", "test")]
        names = tuple(sorted(set(tables[0]) & set(tables[1])))
        require(names, f"no user is in both {folder / 'train'} and {folder / 'test'}; split LEAF's data by sample")
        return _dataset([tables[0][name] for name in names], [tables[1][name] for name in names], names)
    require(window >= 1 and stride >= 1, f"window and stride are {window} and {stride}; give at least 1 each")
    require(0 < test < 1, f"the test share is {test}; give one between 0 and 1")
    roles = {}
    for path in sorted(folder.glob("*.txt")):
        with reading(path, UnicodeDecodeError):
            turns = spoken(path.read_text("utf-8"))
        for role, said in turns.items():
            roles[f"{path.stem}: {role}"] = said
    need = max(min_characters, int(np.ceil((window + 1) / min(test, 1 - test))))  # a window on either side
    kept = {name: " ".join(said) for name, said in sorted(roles.items()) if len(said) > 1}
    kept = {name: text for name, text in kept.items() if len(text) >= need}
    require(kept, f"no role in {folder} has two turns and {need} characters; lower min_characters or add plays")
    train, tests = [], []
    for text in kept.values():
        cut = round(len(text) * (1 - test))
        train.append(_windows(text[:cut], window, stride))
        tests.append(_windows(text[cut:], window, stride))
    return _dataset(train, tests, tuple(kept))


def spoken(play: str) -> dict[str, list[str]]:
    """What each role of a play says, turn by turn; a role's name stands alone after an empty line.

    Names in capitals are always names. Others ("Ham.") must be one word or come twice, since a line of verse
    may look like one.
    """
    lines = [line.strip() for line in play.splitlines()]
    start = next((i for i, line in enumerate(lines) if BEGINS.match(line)), 0)
    lines = ["", *lines[start:], ""]

    def named(i: int) -> str | None:
        line = lines[i]
        alone = not lines[i - 1] and lines[i + 1] and len(line) < 40 and len(line.split()) < 6
        if not alone or NUMERAL.match(line) or BEGINS.match(line):
            return None
        return " ".join(line.rstrip(".").upper().split()) if LOUD.match(line) or QUIET.match(line) else None

    names = {i: name for i in range(1, len(lines) - 1) if (name := named(i)) is not None}
    often = Counter(names.values())
    roles: dict[str, list[str]] = {}
    said: list[str] | None = None
    for i, line in enumerate(lines[1:-1], 1):
        name = names.get(i)
        if name is not None and (LOUD.match(line) or often[name] > 1 or " " not in name):
            said = roles.setdefault(name, [])
            said.append("")
        elif BEGINS.match(line):
            said = None
        elif said is not None:
            said[-1] += f"{line}\n"
    return {
        role: texts
        for role, turns in roles.items()
        if (texts := [text for turn in turns if (text := " ".join(DIRECTION.sub(" ", turn).split()))])
    }


def encode(text: str) -> np.ndarray:
    """Numbers of the characters in LEAF's alphabet; a character that is not there counts as a blank."""
    return CODES[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]


def _windows(text: str, window: int, stride: int) -> Windows:
    views = np.lib.stride_tricks.sliding_window_view(encode(text), window + 1)[::stride]
    return views[:, :-1], views[:, -1]


def _dataset(train: list[Windows], test: list[Windows], names: tuple[str, ...]) -> Dataset:
    def joined(some: list[Windows]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        owners = np.repeat(np.arange(len(some), dtype=np.int32), [len(y) for _, y in some])
        return (np.concatenate([x for x, _ in some]), np.concatenate([y for _, y in some]).astype(np.int32), owners)

    (inputs, labels, groups), (test_inputs, test_labels, test_groups) = joined(train), joined(test)
    classes = tuple(LETTERS)
    return Dataset("shakespeare", inputs, labels, classes, test_inputs, test_labels, groups, test_groups, names)


def _users(folder: Path) -> dict[str, Windows]:
    users = {}
    for path in sorted(folder.glob("*.json")):
        with reading(path, OSError, ValueError, KeyError, TypeError, AttributeError):
            for user, rows in json.loads(path.read_text("utf-8"))["user_data"].items():
                if len(rows["x"]) != len(rows["y"]):
                    raise ValueError(f"{user} has {len(rows['x'])} windows and {len(rows['y'])} labels")
                if rows["x"]:
                    users[user] = np.stack([encode(x) for x in rows["x"]]), encode("".join(rows["y"]))
    return users
