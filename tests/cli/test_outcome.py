"""How a command ends: its exit code, and what it says, where it cannot print or is interrupted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import Patch, Printed, each

from attention_np import cli
from attention_np._lib import machine
from attention_np.cli import outcome, verification

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs /dev/full and signals")
COMMAND = (sys.executable, "-m", "attention_np")


@POSIX
@each("arguments", [["cost"]], long=[["trace", "a", "b"], ["check", "softmax"]])
def test_to_a_device_that_is_full_it_is_one_sentence_and_2_and_where_nobody_reads_silence_and_141(
    arguments: list[str],
) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (2, "attention-np: cannot print: No space left on device\n")
    unread, end = os.pipe()
    os.close(unread)
    ended = subprocess.run([*COMMAND, *arguments], stdout=end, stderr=subprocess.PIPE, text=True)
    os.close(end)
    assert (ended.returncode, ended.stderr) == (141, "")
    closed = subprocess.run(["bash", "-c", '"$@" >&-', "bash", *COMMAND, *arguments], stderr=subprocess.PIPE, text=True)  # noqa: S607
    assert (closed.returncode, closed.stderr) == (0, "")


@POSIX
def test_an_interrupt_is_one_line_and_130_in_all_its_processes(tmp_path: Path) -> None:
    with Path(tmp_path, "printed").open("w") as printed, Path(tmp_path, "said").open("w+") as said:
        running = subprocess.Popen([*COMMAND, "check"], stdout=printed, stderr=said, start_new_session=True)
        for _ in range(600 if machine.cores().usable > 1 else 40):  # until there are other processes, where it has any
            children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
            if not children.exists() or len(children.read_text().split()) > 1 or running.poll() is not None:
                break
            signal.sigtimedwait([], 0.05)
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait() in (130, -signal.SIGINT)  # of both a shell says 130; within exec, Python dies
        said.seek(0)
        assert said.read() == "attention-np: interrupted\n"


def test_an_interrupt_reaches_the_caller_of_a_check_and_ends_what_has_not_begun(monkeypatch: Patch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verification, "check_pages", interrupted)
    assert cli.main(["check", "softmax"]) == outcome.INTERRUPTED


def test_a_file_that_cannot_be_read_is_no_fault_of_the_output(capsys: Printed) -> None:
    def command() -> int:
        return len(Path("missing").read_bytes())

    with pytest.raises(FileNotFoundError):
        outcome.ended(command)
    assert not capsys.readouterr().err


def test_too_little_memory_is_one_sentence_and_2(capsys: Printed) -> None:
    def command() -> int:
        raise MemoryError("Unable to allocate 3 TiB")

    assert outcome.ended(command) == outcome.UNUSABLE
    assert capsys.readouterr().err == "attention-np: there is not enough memory: Unable to allocate 3 TiB\n"


@POSIX
def test_a_json_file_is_written_whole_or_stays_as_it_is_and_keeps_its_permissions(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    limited = f"ulimit -f 1; exec {sys.executable} -m attention_np cost --json {file}"
    assert cli.main(["cost", "--json", str(file)]) == 0
    file.chmod(0o600)
    before = file.read_bytes()
    ended = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)  # noqa: S607
    assert (ended.returncode, ended.stderr) == (2, f"attention-np: cannot write {file}: File too large\n")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (before, 0o600)
    assert [found.name for found in tmp_path.iterdir()] == [file.name]
