"""Which hosts are watched at all. That a lost one is named: test_two_hosts.py."""

import shutil
import time

import psutil
import pytest

from hvdlab.launch.host_watch import watched


def sessions():
    return [child for child in psutil.Process().children() if child.status() != "zombie"]


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh")
def test_a_host_that_never_answered_cannot_be_lost():
    before = sessions()
    with watched(["no-such-host.invalid"], silence=4) as lost:
        deadline = time.monotonic() + 60
        while sessions() != before:  # until ssh gives up
            assert lost() == "" and time.monotonic() < deadline
            time.sleep(0.05)
        assert lost() == ""
    assert sessions() == before


@pytest.mark.parametrize("named, there", [("rsh -n", True), ("", False), ("ssh", False)])
def test_without_ssh_no_host_is_watched(named, there, tmp_path, monkeypatch):
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", named)
    if not there:
        monkeypatch.setenv("PATH", str(tmp_path))
    before = sessions()
    with watched(["host2"]) as lost:
        assert sessions() == before and lost() == ""


@pytest.mark.parametrize("silence", [0, 1, -20])
def test_a_silence_too_short_to_ask_in_is_refused(silence):
    with pytest.raises(ValueError, match=f"at least 4 seconds. Received: silence={silence}"):
        with watched(["host2"], silence=silence):
            pass
