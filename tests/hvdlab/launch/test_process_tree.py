"""Ending a program and all processes that it started."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from lasting_ranks import STAY, gone, told

from hvdlab.launch import local, process_tree


def write(folder, text):
    script = folder / "script.py"
    script.write_text(text)
    return script


@pytest.mark.slow
def test_what_is_born_while_a_run_is_ended_ends_too(tmp_path, monkeypatch):
    """The first list of processes is as old as that: it has the launcher, and not yet its child."""
    pids, looks = psutil.pids, []

    def processes():
        looks.append(pids())
        born = told(tmp_path)[1] if len(looks) == 1 else None
        return [number for number in looks[-1] if number != born]

    with local.started([sys.executable, write(tmp_path, STAY), tmp_path], {}):
        while len(told(tmp_path)) < 2:
            time.sleep(0.1)
        monkeypatch.setattr(psutil, "pids", processes)
    assert gone(told(tmp_path), 2)


def start(folder, name="", **variables):
    """Start a process that ignores SIGTERM, with a child."""
    (own := folder / name).mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, write(own, STAY), own],
        env={**os.environ, **variables},
        start_new_session=True,
    )


def wait_for(folder):
    until = time.monotonic() + 60
    while len(told(folder)) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_several_programs_share_one_grace_period(tmp_path, monkeypatch):
    monkeypatch.setattr(process_tree, "GRACE_SECONDS", 1.0)
    programs = [start(tmp_path, name) for name in "abc"]
    for name in "abc":
        wait_for(tmp_path / name)
    began = time.monotonic()
    process_tree.end(*programs)
    assert 1.0 <= time.monotonic() - began < 3.0
    for name in "abc":
        assert gone(told(tmp_path / name), 2)


def test_processes_whose_program_has_ended_end_at_once(tmp_path):
    program = start(tmp_path)
    wait_for(tmp_path)
    program.kill()
    program.wait()
    began = time.monotonic()
    process_tree.end(program)
    assert time.monotonic() - began < process_tree.GRACE_SECONDS
    assert gone(told(tmp_path), 2)


@pytest.mark.slow
def test_the_mark_finds_a_process_in_a_session_of_its_own(tmp_path):
    """As the ranks of torchrun. A process with another mark is left alone."""
    marked = {process_tree.MARK_VARIABLE: "one"}
    rank = start(tmp_path, "a", **marked)
    other = start(tmp_path, "b", **{process_tree.MARK_VARIABLE: "two"})
    program = subprocess.Popen(["true"], start_new_session=True)
    try:
        wait_for(tmp_path / "a")
        wait_for(tmp_path / "b")
        process_tree.end(program, mark="one")
        assert rank.wait(5) == -signal.SIGKILL and gone(told(tmp_path / "a"), 2)
        assert other.poll() is None
    finally:
        process_tree.end(rank, other)


def test_a_signal_reaches_only_the_children_that_are_wanted(tmp_path):
    code = (
        "import os, subprocess, sys\n"
        "for rank in '01':\n"
        "    subprocess.Popen(['sleep', '100'], env={**os.environ, 'RANK': rank})\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    program = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes)
    try:
        program.stdout.readline()
        children = psutil.Process(program.pid).children()
        while any(child.name() != "sleep" for child in children):
            time.sleep(0.05)
        process_tree.signal_children(program, signal.SIGABRT, lambda of: of.get("RANK") == "1")
        states = [psutil.STATUS_SLEEPING, psutil.STATUS_ZOMBIE]
        until = time.monotonic() + 5
        while [child.status() for child in children] != states and time.monotonic() < until:
            time.sleep(0.05)
        assert [child.status() for child in children] == states
    finally:
        process_tree.end(program)
        program.stdin.close()
        program.stdout.close()
