"""One file over HTTP: taken up where it was left, checked, and only then given its name."""

import contextlib
import fcntl
import http.client
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ratemesh.data.known import KnownFile, fault_of
from ratemesh.errors import RatemeshError

Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes that are there, and the bytes that there will be, if that is known."""

TIMEOUT = 20.0
"""Seconds without a byte before a server counts as silent."""
ATTEMPTS = 5
"""Broken connections in a row, none of which brought a byte, before a server is given up."""
CHUNK = 1 << 16
MOST = 1 << 30
"""Bytes of a file whose size is not known beforehand."""


class FetchError(RatemeshError):
    """One way to get a file did not work; the next one may."""


class _DroppedError(Exception):
    """The connection ended early; what came is kept."""


def download(url: str, target: Path, file: KnownFile, progress: Progress) -> None:
    """Fetch `url` into `target`; what an earlier attempt left in `target`.part is not fetched again."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with part.open("ab") as out:
        _lock(out, part)
        try:
            for _ in range(2 if out.tell() else 1):  # what was there before may be of another file: then from the start
                _complete(url, out, file, progress)
                fault = fault_of(part, file)
                if not fault:
                    part.replace(target)
                    return
                _restart(out)
            raise FetchError(f"{url} gave {fault} instead of {file.in_words()}")
        finally:
            if not out.tell():
                part.unlink(missing_ok=True)


def _lock(out: IO[bytes], part: Path) -> None:
    """Keep a second process away; the lock goes with the process, however it ends."""
    with contextlib.suppress(OSError):
        fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(out.fileno()), part.stat()):  # not renamed between opening and locking
            return
    raise FetchError(f"'{part}' is being written by another process; wait for it")


def _complete(url: str, out: IO[bytes], file: KnownFile, progress: Progress) -> None:
    """Ask until all is there; a connection that breaks is asked for the rest."""
    fruitless = 0
    while out.tell() != file.size:
        before = out.tell()
        try:
            _ask(url, out, file, progress)
            return
        except urllib.error.URLError as error:
            raise FetchError(f"{url}: {error.reason}") from None
        except (_DroppedError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            fruitless = 0 if out.tell() > before else fruitless + 1
            if fruitless >= ATTEMPTS or not out.tell():
                raise FetchError(f"{url}: {error or type(error).__name__}") from None


def _ask(url: str, out: IO[bytes], file: KnownFile, progress: Progress) -> None:
    """Make one request and append what comes."""
    done = out.tell()
    headers = {"User-Agent": "ratemesh", **({"Range": f"bytes={done}-"} if done else {})}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing beyond what is there: the checksum decides
        raise
    with answer:
        if done and not answer.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            _restart(out)  # the server sends all of it again
        total = int(answer.headers.get("Content-Length") or 0) + out.tell() or None
        most = file.size or MOST
        while chunk := answer.read(CHUNK):
            out.write(chunk)
            if out.tell() > most:
                raise FetchError(f"{file.name} must have at most {most:,} bytes; the server sends more")
            progress(file.name, out.tell(), total)
    out.flush()
    if total is not None and out.tell() < total:
        raise _DroppedError(f"the connection ended after {out.tell():,} of {total:,} bytes")


def _restart(out: IO[bytes]) -> None:
    out.seek(0)
    out.truncate()
