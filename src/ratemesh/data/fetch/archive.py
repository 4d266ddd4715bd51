"""Wanted files out of a tar archive: their bytes only, never the archive's own paths, links or sizes."""

import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ratemesh.data.fetch.http import MOST, FetchError


def take(archive: Path, wanted: Iterable[str], into: Path, most: int = MOST) -> None:
    """Copy the files with these names out of a tar archive, packed or not; `most` bounds what is unpacked in all."""
    left = set(wanted)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.offset_data + member.size > most:
                    raise FetchError(f"'{archive.name}' must unpack to at most {most:,} bytes; there are more")
                name = PurePosixPath(member.name).name
                source = tar.extractfile(member) if member.isreg() and name in left else None
                if source is not None:
                    left.remove(name)
                    with source, (into / name).open("wb") as out:
                        shutil.copyfileobj(source, out)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise FetchError(f"'{archive.name}' must be a readable archive ({error})") from None
    if left:
        raise FetchError(f"'{archive.name}' must hold {', '.join(sorted(left))}; it does not")
