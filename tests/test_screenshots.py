"""The pictures in docs/images, and how they are made smaller."""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from pathlib import Path

import pytest

from tests.servers import PROJECT
from tools import screenshots
from tools.palette import COLORS, SIGNATURE, reduced
from tools.screenshots import BROWSERS, FOLDER, MAX_SIZE, PICTURES


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(rows: list[bytes], size: int) -> bytes:
    """A PNG of these rows, with `size` bytes a pixel. The rows take turns with the five filters."""
    data, before = b"", bytes(len(rows[0]))
    for number, row in enumerate(rows):
        kind = number % 5
        data += bytes([kind, *(filtered(kind, row, before, at, size) for at in range(len(row)))])
        before = row
    color = {3: 2, 4: 6}[size]
    header = struct.pack(">IIBBBBB", len(rows[0]) // size, len(rows), 8, color, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(data)), chunk(b"IEND", b"")]
    return SIGNATURE + b"".join(parts)


def filtered(kind: int, row: bytes, before: bytes, at: int, size: int) -> int:
    left = row[at - size] if at >= size else 0
    corner = before[at - size] if at >= size else 0
    up = before[at]
    guess = left + up - corner
    nearest = min((left, up, corner), key=lambda value: abs(guess - value))
    return (row[at] - (0, left, up, (left + up) // 2, nearest)[kind]) & 255


def pixels(picture: bytes) -> list[bytes]:
    """The colors of a picture with a palette, row after row."""
    parts, at = {}, len(SIGNATURE)
    while at < len(picture):
        (length,) = struct.unpack_from(">I", picture, at)
        parts[picture[at + 4 : at + 8]] = picture[at + 8 : at + 8 + length]
        at += 12 + length
    width, height = struct.unpack_from(">II", parts[b"IHDR"])
    data, palette = zlib.decompress(parts[b"IDAT"]), parts[b"PLTE"]
    assert len(data) == height * (width + 1)
    places = [data[row * (width + 1) + 1 + x] for row in range(height) for x in range(width)]
    return [palette[3 * place : 3 * place + 3] for place in places]


@pytest.mark.parametrize("size", [3, 4])
def test_a_picture_of_few_colors_keeps_all_of_them(size: int) -> None:
    chance = random.Random(1)
    colors = [chance.randbytes(3) for _ in range(40)]
    chosen = [[chance.choice(colors) for _ in range(17)] for _ in range(25)]
    rows = [b"".join(color + b"\xff" * (size - 3) for color in row) for row in chosen]
    assert pixels(reduced(png(rows, size))) == [color for row in chosen for color in row]


def test_a_picture_of_many_colors_keeps_the_most_frequent_ones() -> None:
    grey = [bytes([level, level, level]) for level in range(256)]
    rare = bytes([100, 101, 102])
    rows = [b"".join(grey) + grey[0], b"".join(grey) + rare]
    found = pixels(reduced(png(rows, 3)))
    assert len(set(found)) == COLORS
    assert found[-1] == grey[101]
    assert found[:256] == grey


def test_what_is_no_rgb_picture_is_an_error() -> None:
    with pytest.raises(ValueError, match="no PNG"):
        reduced(b"GIF89a")
    with pytest.raises(ValueError, match="no RGB picture"):
        reduced(reduced(png([bytes(6)], 3)))


@pytest.mark.parametrize("name", PICTURES)
def test_each_picture_is_small_and_as_wide_as_it_should_be(name: str) -> None:
    picture = (FOLDER / f"{name}.png").read_bytes()
    assert picture.startswith(SIGNATURE)
    assert struct.unpack_from(">I", picture, 16)[0] == PICTURES[name].width
    assert len(picture) <= MAX_SIZE


def test_the_page_about_the_page_shows_every_picture_and_there_are_no_others() -> None:
    text = (PROJECT / "docs" / "page.md").read_text()
    assert all(f"](images/{name}.png)" in text for name in PICTURES)
    assert sorted(path.stem for path in Path(FOLDER).iterdir()) == sorted(PICTURES)


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("chromedriver") and any(map(shutil.which, BROWSERS))),
    reason="needs Chromium and its driver: apt install chromium chromium-driver",
)
def test_a_picture_is_taken_from_the_demos_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screenshots, "FOLDER", tmp_path / "images")
    screenshots.main(["explain"])
    taken = (tmp_path / "images" / "explain.png").read_bytes()
    assert taken.startswith(SIGNATURE)
    assert struct.unpack_from(">I", taken, 16)[0] == PICTURES["explain"].width
    assert len(set(pixels(taken))) > 16  # not an empty page


def test_a_picture_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(SystemExit, match="there is no picture nothing; choose from overview, "):
        screenshots.main(["nothing"])
