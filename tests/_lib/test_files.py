"""A file is written whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attention_np._lib.files import write_whole


def test_a_file_is_replaced_whole_also_behind_a_link_and_nothing_else_is_left(tmp_path):
    path, link = tmp_path / "kept", tmp_path / "link"
    link.symlink_to("kept")
    write_whole(str(link), b"old")
    with path.open("rb") as reader:
        write_whole(link, b"new")
        assert reader.read() == b"old"  # who reads the old one reads all of it
    assert (path.read_bytes(), link.is_symlink()) == (b"new", True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kept", "link"]


def test_what_cannot_be_written_leaves_the_old_file_as_it_was_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "kept"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match=r"^no space left on device$"):
            write_whole(path, b"new")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "nowhere" / "file", b"new")
    assert path.read_bytes() == b"old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kept"]


def test_a_file_keeps_its_permissions_and_a_new_one_has_those_of_all_new_ones(tmp_path, monkeypatch):
    kept, new, usual = (tmp_path / name for name in ("kept", "new", "usual"))
    kept.touch(0o640)
    usual.touch()
    modes = []
    monkeypatch.setattr(os, "fsync", lambda fd: modes.append(os.fstat(fd).st_mode & 0o777))
    for path in (kept, new):
        write_whole(path, b"content")
    assert modes[0] == 0o600  # never open to others, also while it is written
    assert kept.stat().st_mode & 0o777 == 0o640
    assert new.stat().st_mode == usual.stat().st_mode


def test_a_name_may_be_as_long_as_names_can_be_and_links_that_go_round_are_an_error_of_the_system(tmp_path):
    write_whole(tmp_path / ("x" * 255), b"new")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(tmp_path / "a", b"new")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b", "x" * 255]


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="this system has no /dev/stdout")
def test_what_is_no_file_of_ones_own_is_written_to_as_it_is(tmp_path):
    program = (
        "from attention_np._lib.files import write_whole; "
        "[write_whole('/dev/stdout', x) for x in (b'one ', b'two ')]; write_whole('/dev/null', b'three')"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"one two "
    with (tmp_path / "log").open("ab") as log:
        log.write(b"zero ")
        log.flush()
        subprocess.run(command, stdout=log, check=True)
    assert (tmp_path / "log").read_bytes() == b"zero one two "
    os.mkfifo(tmp_path / "pipe")
    opened = os.open(tmp_path / "pipe", os.O_RDWR)
    write_whole(tmp_path / "pipe", b"through")
    assert os.read(opened, 100) == b"through"
    os.close(opened)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log", "pipe"]
