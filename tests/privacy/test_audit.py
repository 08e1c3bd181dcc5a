"""A site's own log: full disks, forged and deleted lines, and what the server's receipts tell."""

import errno
import json

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.deploy.operations import keys
from equipoise.errors import FileError, InputError
from equipoise.privacy import audit, identity


@pytest.fixture
def signer(tmp_path):
    keys.make(tmp_path / "keys", ["north", "eve"])
    return identity.signer(tmp_path / "keys" / "sites" / "north")


def log(folder, count=5, signer=None):
    return [audit.record(folder, {"kind": "exchange", "round": k, "answer": "replied"}, signer) for k in range(count)][
        -1
    ]


def test_a_forged_line_at_the_end_is_noticed_though_the_head_is_untouched(tmp_path, signer):
    home = tmp_path / "north"
    log(home, signer=signer)
    head = (home / audit.HEAD).read_text()
    digest = json.loads(head)["digest"]
    eve = identity.signer(tmp_path / "keys" / "sites" / "eve")
    with (home / audit.FILE).open("a") as file:
        line = audit._line({"number": 6, "kind": "exchange", "answer": "refused", "previous": digest})
        file.write(audit._line({**json.loads(line), "signature": eve.sign(line.encode()).hex()}) + "\n")
    with pytest.raises(InputError, match="line 6 is not signed by the site's key"):
        audit.verify(home, signer.check)
    told = CliRunner().invoke(app, ["flower", "audit", str(home)], env={"COLUMNS": "200"})
    assert told.exit_code == 2
    assert "line 6 is not signed" in told.output
    log(home, 1, signer)  # the site does not go on from it, and what was forged stays visible
    with pytest.raises(InputError, match="line 6 is not signed"):
        audit.verify(home, signer.check)


@pytest.mark.parametrize("fails", [1, 2, 7])
def test_a_disk_that_is_full_for_some_messages_does_not_break_the_chain(fails, tmp_path, signer, monkeypatch):
    """The head cannot be written, several times over; then there is room again."""
    log(tmp_path, 3, signer)
    whole = audit.write_whole

    def full(path, *args, **options):
        if path.name == audit.HEAD:
            raise FileError("no room")
        whole(path, *args, **options)

    monkeypatch.setattr(audit, "write_whole", full)
    for _ in range(fails):
        with pytest.raises(FileError):
            log(tmp_path, 1, signer)
    monkeypatch.undo()
    log(tmp_path, 2, signer)
    assert len(audit.verify(tmp_path, signer.check).entries) == 5 + fails


def test_half_a_line_is_taken_off_without_any_room(tmp_path, signer, monkeypatch):
    log(tmp_path, 2, signer)
    append = audit.append

    def half(path, content):
        append(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(audit, "append", half)
    with pytest.raises(OSError, match="full"):
        log(tmp_path, 1, signer)
    monkeypatch.undo()
    log(tmp_path, 1, signer)
    assert len(audit.verify(tmp_path, signer.check).entries) == 3


def test_deletion_of_both_files_is_noticed_by_the_receipts(tmp_path, signer):
    receipt = log(tmp_path / "north", 5, signer)
    known = tmp_path / "receipts.json"
    known.write_text(json.dumps({"north": receipt._asdict()}))
    words = ["flower", "audit", str(tmp_path / "north"), "--receipts", str(known)]
    words += ["--key", str(tmp_path / "keys" / "sites" / "north.pub")]
    fine = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert "line 5 is the one that the server has a receipt of" in fine.output, fine.output
    for name in (audit.FILE, audit.HEAD):
        (tmp_path / "north" / name).unlink()
    with pytest.raises(InputError, match="is gone, though the server has a receipt of line 5"):
        audit.verify(tmp_path / "north", signer.check, receipt)
    log(tmp_path / "north", 7, signer)  # written anew, with the true key
    audit.verify(tmp_path / "north", signer.check)  # what remains undetectable without receipts
    found = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert found.exit_code == 2
    assert "not the line 5 that the server has a receipt of" in " ".join(found.output.split())
    with pytest.raises(InputError, match="receipt is not signed by the site's key"):
        audit.verify(tmp_path / "north", signer.check, receipt._replace(number=7))


def shown(folder, *options):
    result = CliRunner().invoke(app, ["flower", "audit", str(folder), *options], env={"COLUMNS": "200"})
    return result.exit_code, " ".join(result.output.split())


def test_no_more_is_said_than_is_known(tmp_path, signer):
    """Of a site without a log, of one that was begun anew, and of lines after the last receipt."""
    home, key = tmp_path / "north", ["--key", str(tmp_path / "keys" / "sites" / "north.pub")]
    home.mkdir()
    code, said = shown(home, *key)
    assert code == 0
    assert "nothing was answered or refused here, or all of it was deleted without the server's receipts" in said
    receipt = log(home, 3, signer)
    log(home, 2, signer)
    known = tmp_path / "receipts.json"
    known.write_text(json.dumps({"north": receipt._asdict()}))
    code, said = shown(home, *key)
    assert code == 0
    assert "nobody can tell whether its end, or one before it, is gone" in said
    code, said = shown(home, *key, "--receipts", str(known))
    assert "line 3 is the one that the server has a receipt of; nothing vouches for what came after it" in said

    for name in (audit.FILE, audit.HEAD):
        (home / name).unlink()
    code, said = shown(home, *key)
    assert (code, "is gone, though audit.pub beside it says that there was one" in said) == (2, True)
    log(home, 4, signer)
    code, said = shown(home, *key)
    assert (code, "line 1 says that an earlier log was gone when it was written" in said) == (0, True)
    code, said = shown(home, *key, "--receipts", str(known))
    assert (code, "not the line 3 that the server has a receipt of" in said) == (2, True)


def cut_off(home):
    path = home / audit.FILE
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines()[:3]))


def test_lines_that_were_cut_off_with_the_head_gone_or_made_up_are_noticed(tmp_path, signer):
    home = tmp_path / "north"
    receipt = log(home, 5, signer)
    cut_off(home)
    (home / audit.HEAD).unlink()
    with pytest.raises(InputError, match=r"lines at the end of audit\.jsonl may be gone with it"):
        audit.verify(home, signer.check)
    eve = identity.signer(tmp_path / "keys" / "sites" / "eve")
    last = audit._digest((home / audit.FILE).read_text().splitlines()[-1])
    head = audit.Receipt(3, last, "")
    for signature in ("", "00", eve.sign(head.said).hex(), receipt.signature):
        (home / audit.HEAD).write_text(json.dumps(head._replace(signature=signature)._asdict()))
        with pytest.raises(InputError, match="head is not signed by the site's key"):
            audit.verify(home, signer.check)
    (home / audit.HEAD).write_text(json.dumps(head._replace(signature=signer.sign(head.said).hex())._asdict()))
    audit.verify(home, signer.check)  # an earlier head that was put back: only the server knows better
    with pytest.raises(InputError, match="not the line 5 that the server has a receipt of"):
        audit.verify(home, signer.check, receipt)
    of_eve = receipt._replace(signature=eve.sign(receipt.said).hex())
    with pytest.raises(InputError, match="receipt is not signed by the site's key"):
        audit.verify(home, signer.check, of_eve)


def test_a_disk_that_is_full_from_the_beginning_accuses_nobody(tmp_path, signer, monkeypatch):
    whole, written = audit.write_whole, []

    def full(path, *args, **options):
        written.append(path.name)
        if len(written) > 1:
            raise FileError("no room")
        whole(path, *args, **options)

    monkeypatch.setattr(audit, "write_whole", full)
    for _ in range(3):
        with pytest.raises(FileError):
            log(tmp_path, 1, signer)
    assert len(audit.verify(tmp_path, signer.check).entries) == 3
    monkeypatch.undo()
    log(tmp_path, 1, signer)
    chain = audit.verify(tmp_path, signer.check)
    assert (len(chain.entries), chain.anew) == (4, False)


def test_the_last_line_is_found_however_long_it_and_what_was_begun_after_it_are(tmp_path, signer):
    """Of a long log the end alone is read."""
    lengths = (10, 3 * audit.SHORT, 10, audit.SHORT - 300, 5 * audit.SHORT)
    for length in lengths:
        audit.record(tmp_path, {"kind": "exchange", "answer": "refused", "why": "x" * length}, signer)
        with (tmp_path / audit.FILE).open("a") as file:
            file.write("y" * length)  # the site was killed while it wrote
    log(tmp_path, 1, signer)
    chain = audit.verify(tmp_path, signer.check)
    assert [len(entry.get("why", "")) for entry in chain.entries] == [*lengths, 0]
