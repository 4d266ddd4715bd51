"""One file over HTTP: whole or not at all, taken up where it was left, whatever the server does."""

import fcntl

import pytest

from ratemesh.data.download import FetchError, download
from ratemesh.data.known import KnownFile
from toy_server import CONTENT, FILE, NOWHERE, leftovers, quiet, server

__all__ = ["server"]  # a fixture


def test_a_file_arrives_whole_and_progress_is_told(server, tmp_path):
    told = []
    download(server.url + "file.bin", tmp_path / "deep" / "a", FILE, lambda *words: told.append(words))
    assert (tmp_path / "deep" / "a").read_bytes() == CONTENT
    assert leftovers(tmp_path / "deep") == ["a"]
    assert told[-1] == ("file.bin", len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("size", [len(CONTENT), None], ids=["size known", "size not known"])
def test_what_is_there_is_not_fetched_again(server, tmp_path, size):
    file = KnownFile(FILE.name, FILE.md5, size)
    (tmp_path / "a.part").write_bytes(CONTENT[:123_456])
    download(server.url + "file.bin", tmp_path / "a", file, quiet)
    assert ((tmp_path / "a").read_bytes() == CONTENT, server.asked) == (True, [123_456])
    (tmp_path / "b.part").write_bytes(CONTENT)  # all there, but never given its name
    download(server.url + "file.bin", tmp_path / "b", file, quiet)
    assert ((tmp_path / "b").read_bytes() == CONTENT, server.asked[1:]) == (True, [] if size else [len(CONTENT)])


def test_broken_connections_are_taken_up_again(server, tmp_path):
    server.cut = 100_000
    download(server.url + "file.bin", tmp_path / "a", FILE, quiet)
    assert ((tmp_path / "a").read_bytes() == CONTENT, server.asked) == (True, [0, 100_000, 200_000])


def test_a_server_without_ranges_sends_all_of_it_again(server, tmp_path):
    server.no_ranges = True
    (tmp_path / "a.part").write_bytes(CONTENT[:1000])
    download(server.url + "file.bin", tmp_path / "a", FILE, quiet)
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("start", [b"something else", bytes(len(CONTENT) + 5)], ids=["other", "longer"])
def test_a_start_of_another_file_is_thrown_away(server, tmp_path, start):
    (tmp_path / "a.part").write_bytes(start)
    download(server.url + "file.bin", tmp_path / "a", FILE, quiet)
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"!", CONTENT[:-1], CONTENT + b"!"], ids=["other", "short", "long"])
def test_a_wrong_file_is_not_kept(server, tmp_path, content):
    server.files["file.bin"] = content
    with pytest.raises(FetchError, match=r"file\.bin"):
        download(server.url + "file.bin", tmp_path / "a", FILE, quiet)
    assert not (tmp_path / "a").exists()


def test_absent_files_and_silent_hosts(server, tmp_path):
    with pytest.raises(FetchError, match="Not Found"):
        download(server.url + "other.bin", tmp_path / "a", FILE, quiet)
    with pytest.raises(FetchError, match="refused"):
        download(NOWHERE + "file.bin", tmp_path / "a", FILE, quiet)
    server.cut = 0
    with pytest.raises(FetchError, match="the connection ended after 0 of 300,000 bytes"):
        download(server.url + "file.bin", tmp_path / "a", FILE, quiet)
    assert leftovers(tmp_path) == []


def test_two_at_once_do_not_mix(server, tmp_path):
    with (tmp_path / "a.part").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(FetchError, match="written by another process"):
            download(server.url + "file.bin", tmp_path / "a", FILE, quiet)
    assert leftovers(tmp_path) == ["a.part"]
