"""Downloads from a real server on this machine: resume, checksums, and one for all processes."""

import hashlib
import http.server
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

from hvdlab.data import DataError, command
from hvdlab.data import download as module
from hvdlab.data.download import SOURCES, Source, download, fetch, progress_line

CONTENT = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT at any path but /missing; the test sets how well on the server object."""

    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.requests.append((self.path, asked))
        server.arrived.set()
        assert server.go_on.wait(timeout=60)
        if self.path == "/missing":
            return self.send_error(404)
        start = 0
        if asked and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(CONTENT):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : server.stop_after])  # then the connection closes

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # so that server_close() waits for the handlers
    server.requests, server.ranges, server.stop_after = [], True, None
    server.arrived, server.go_on = threading.Event(), threading.Event()
    server.go_on.set()
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.go_on.set()
    server.shutdown()
    server.server_close()
    thread.join(timeout=30)


def cut_at(server, size, path) -> str:
    """Download with a connection that ends after `size` bytes; return the message."""
    server.stop_after = size
    with pytest.raises(DataError) as error:
        download(f"{server.url}/file", path, sha256=SHA256, size=len(CONTENT))
    server.stop_after = None
    return str(error.value)


def test_download(server, tmp_path):
    seen = []
    path = download(
        f"{server.url}/file",
        tmp_path / "new/folder/file",
        sha256=SHA256,
        md5=MD5,
        size=len(CONTENT),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert path == tmp_path / "new/folder/file" and path.read_bytes() == CONTENT
    assert server.requests == [("/file", None)]
    assert [file.name for file in path.parent.iterdir()] == ["file"]  # no .part left
    done = [d for d, _ in seen]
    assert done == sorted(done) and done[-1] == len(CONTENT) and len(done) > 3
    assert {total for _, total in seen} == {len(CONTENT)}


def test_interrupted_then_resumed(server, tmp_path):
    path = tmp_path / "file"
    text = cut_at(server, 1_000_000, path)
    assert f"Could not download {server.url}/file (the connection ended after 1,000,000" in text
    assert "of 3,000,000 bytes): check the network and run the command again" in text
    assert not path.exists() and (tmp_path / "file.part").read_bytes() == CONTENT[:1_000_000]

    download(f"{server.url}/file", path, sha256=SHA256, size=len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert server.requests == [("/file", None), ("/file", "bytes=1000000-")]


def test_interruption_is_noticed_without_a_known_size(server, tmp_path):
    server.stop_after = 77
    with pytest.raises(DataError, match="ended after 77 of 3,000,000 bytes"):
        download(f"{server.url}/file", tmp_path / "file")


def test_a_server_without_ranges_starts_anew(server, tmp_path):
    path = tmp_path / "file"
    cut_at(server, 1_000_000, path)
    server.ranges = False
    download(f"{server.url}/file", path, md5=MD5, size=len(CONTENT))
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_whole_part_is_only_checked(server, tmp_path, size):
    (tmp_path / "file.part").write_bytes(CONTENT)
    download(f"{server.url}/file", tmp_path / "file", sha256=SHA256, size=size)
    assert (tmp_path / "file").read_bytes() == CONTENT
    # Without a size only the server can say that there is nothing more: 416, then from the start.
    assert server.requests == (
        [] if size else [("/file", f"bytes={len(CONTENT)}-"), ("/file", None)]
    )


@pytest.mark.parametrize("kind, right", [("sha256", SHA256), ("md5", MD5)])
def test_wrong_checksum(server, tmp_path, kind, right):
    wrong = "0" * len(right)
    with pytest.raises(DataError) as error:
        download(f"{server.url}/file", tmp_path / "file", **{kind: wrong})
    text = str(error.value)
    assert (
        f"{server.url}/file: expected {kind} {wrong}, found {right}; the file was deleted" in text
    )
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_part_is_deleted_and_the_next_call_succeeds(server, tmp_path):
    (tmp_path / "file.part").write_bytes(b"other" * 1000)
    with pytest.raises(DataError, match="expected sha256"):
        download(f"{server.url}/file", tmp_path / "file", sha256=SHA256, size=len(CONTENT))
    download(f"{server.url}/file", tmp_path / "file", sha256=SHA256, size=len(CONTENT))
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_too_long(server, tmp_path):
    with pytest.raises(DataError, match="expected size 1,000 bytes, found [0-9,]+ bytes"):
        download(f"{server.url}/file", tmp_path / "file", size=1000)
    assert list(tmp_path.iterdir()) == []


def test_not_on_the_server(server, tmp_path):
    with pytest.raises(DataError, match=r"/missing \(HTTP Error 404: Not Found\): check"):
        download(f"{server.url}/missing", tmp_path / "file")


def test_no_network(server, tmp_path):
    url = server.url
    server.shutdown()
    server.server_close()  # nothing listens at this port any more
    with pytest.raises(DataError) as error:
        download(f"{url}/file", tmp_path / "file")
    assert str(error.value) == (
        f"Could not download {url}/file (Connection refused): check the network and run the "
        f"command again (it continues where it stopped), copy the file to {tmp_path}/file yourself, "
        "or make a synthetic data set with --synthetic."
    )


def test_a_full_disk_is_not_taken_for_the_network(server, tmp_path):
    (tmp_path / "file.part").symlink_to("/dev/full")
    with pytest.raises(
        DataError, match="^Cannot write .*file.part .No space left on device.: make"
    ):
        download(f"{server.url}/file", tmp_path / "file")


def test_a_silent_server_times_out(server, tmp_path):
    server.go_on.clear()
    with pytest.raises(DataError, match="timed out"):
        download(f"{server.url}/file", tmp_path / "file", timeout=0.2)


def test_progress_line_waits_two_seconds(capsys):
    times = iter([0.0, 1.9, 2.1, 2.2, 2.7, 2.8])
    progress = progress_line("file", clock=lambda: next(times))
    for done in (10e6, 20e6, 21e6, 30e6, 40e6):
        progress(done, 40e6)
    assert capsys.readouterr().err == (
        "\rfile: 20.0 MB of 40.0 MB\rfile: 30.0 MB of 40.0 MB\rfile: 40.0 MB of 40.0 MB\n"
    )
    progress_line("fast", clock=lambda: 0.0)(1, 1)
    assert capsys.readouterr().err == ""


# fetch -------------------------------------------------------------------------------------------


@pytest.fixture
def source(server, monkeypatch):
    sources = [
        Source(f"{server.url}/{name}", f"sub/{name}.gz", MD5, len(CONTENT), f"sub/{name}")
        for name in ("a", "b")
    ]
    monkeypatch.setitem(module.SOURCES, "cifar10", sources)


def test_fetch_gets_what_is_missing_and_only_once(server, source, tmp_path):
    assert fetch("cifar10", tmp_path) == tmp_path
    assert sorted(path for path, _ in server.requests) == ["/a", "/b"]
    assert (tmp_path / "sub/a.gz").read_bytes() == (tmp_path / "sub/b.gz").read_bytes() == CONTENT
    fetch("cifar10", tmp_path)
    assert len(server.requests) == 2

    (tmp_path / "sub/a.gz").rename(tmp_path / "sub/a")  # unpacked by hand: as good
    (tmp_path / "sub/b.gz").unlink()
    fetch("cifar10", tmp_path)
    assert [path for path, _ in server.requests[2:]] == ["/b"]


def test_fetch_default_folders(server, source, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HVDLAB_DATA", raising=False)
    assert fetch("cifar10") == tmp_path / "home/.cache/hvdlab"
    monkeypatch.setenv("HVDLAB_DATA", str(tmp_path / "data"))
    assert fetch("cifar10") == tmp_path / "data" and (tmp_path / "data/sub/a.gz").exists()


def test_what_a_named_folder_cannot_take_goes_where_the_labs_look_next(
    server, source, tmp_path, monkeypatch, capsys
):
    """/proc is a folder that nobody can write to."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HVDLAB_DATA", "/proc")

    def get(to):
        return fetch("cifar10", to)

    assert command.where_one_may_write(get) == tmp_path / ".cache/hvdlab"
    assert "HVDLAB_DATA=/proc cannot be written to (" in capsys.readouterr().err
    with pytest.raises(DataError, match="^Cannot write cifar10 to /proc"):
        command.where_one_may_write(get, "/proc")  # as --dir
    (tmp_path / ".cache/hvdlab/sub/a.gz").unlink()
    monkeypatch.setenv("HVDLAB_DATA", str(tmp_path))
    server.stop_after = 9
    with pytest.raises(DataError, match="the connection ended after 9 of 3,000,000 bytes"):
        command.where_one_may_write(get)


def test_fetch_refuses_to_mix_with_a_synthetic_data_set(server, source, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/SYNTHETIC.txt").touch()
    with pytest.raises(
        DataError, match=f"{tmp_path}/sub holds a synthetic data set in place of cifar10: delete"
    ):
        fetch("cifar10", tmp_path)
    assert server.requests == []


def test_fetch_into_a_file(source, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        DataError, match="Cannot write cifar10 to .*/file: File exists; name a fold"
    ):
        fetch("cifar10", tmp_path / "file")


def test_fetch_unknown_name():
    with pytest.raises(ValueError) as error:
        fetch("mnist")
    text = "name must be one of cifar10, fashion_mnist. Received: name='mnist'"
    assert str(error.value) == text


def test_two_processes_download_once(server, tmp_path):
    """The server holds the first answer back until the second process says that it waits."""
    code = (
        "import sys; from hvdlab.data import download\n"
        f"source = download.Source('{server.url}/file', 'file', '{MD5}', {len(CONTENT)}, 'x/y')\n"
        "download.SOURCES['cifar10'] = [source]\n"
        "download.fetch('cifar10', sys.argv[1])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    server.go_on.clear()
    first = subprocess.Popen(command)
    try:
        assert server.arrived.wait(timeout=60)
        second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            said = second.stderr.readline()
            assert said == "Another process is writing cifar10: waiting for it.\n"
            server.go_on.set()
            assert second.communicate(timeout=60)[1] == ""
            assert first.wait(timeout=60) == second.returncode == 0
        finally:
            second.kill()
    finally:
        first.kill()
    assert server.requests == [("/file", None)]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_the_official_sources():
    (cifar,) = SOURCES["cifar10"]
    assert cifar.url == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    assert (cifar.file, cifar.size) == ("cifar-10-binary.tar.gz", 170_052_171)
    urls = [source.url for source in SOURCES["fashion_mnist"]]
    assert urls[2] == (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-images-idx3-ubyte.gz"
    )
    files = [source.file for source in SOURCES["fashion_mnist"]]
    assert files[0] == "fashion-mnist/train-images-idx3-ubyte.gz" and len(files) == 4
    # As their authors publish them: a wrong one would refuse the right file.
    assert cifar.md5 == "c32a1d4ab5d03f1284b67883e8d87530"
    assert [source.md5 for source in SOURCES["fashion_mnist"]] == [
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ]
