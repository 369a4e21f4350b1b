"""Every path that a file or a command line may name is read or refused at once, with one sentence."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from keyfence.authoring.lint import check_policy
from keyfence.authoring.testing import read_cases
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.waivers import read_waivers
from keyfence.policy.loading.load import load_policy
from keyfence.policy.source.files import MAX_BYTES, Given, Reading, Unreadable, read_file, shown_name


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path must be short
        bound.bind(path.name)
        os.chdir(here)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_large_file(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * MAX_BYTES)


def an_endless_link(path: Path) -> None:
    path.symlink_to(path)


KINDS = {
    a_device: "cannot be read: it is a device; name a regular file",
    a_pipe: "cannot be read: it is a pipe; name a regular file",
    a_socket: "cannot be read: No such device or address",
    a_large_file: f"cannot be read: it has more than {MAX_BYTES} bytes; name a smaller file",
    an_endless_link: "cannot be read: Too many levels of symbolic links",
}
READERS: dict[str, Callable[[Path], object]] = {
    "a policy": load_policy,
    "a configuration": lambda path: load_settings(str(path), Overrides()),
    "waivers": read_waivers,
    "policy tests": read_cases,
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [*KINDS, a_folder], ids=lambda make: make.__name__)
def test_a_path_that_is_not_a_regular_file_gives_one_sentence(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "file.yaml"
    make(path)
    with pytest.raises(Unreadable) as raised:
        read_file(path)
    expected = KINDS.get(make, "cannot be read: it is a folder; name a regular file")
    assert str(raised.value) == expected


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("what", READERS)
def test_every_reader_of_files_reports_it_in_one_sentence(
    what: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "file.yaml"
    make(path)
    with pytest.raises(FileError) as raised:
        READERS[what](path)
    assert str(raised.value) == f"{path}:1:1: error: {KINDS[make]}"


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_scripts_and_files_of_a_folder_report_it_too(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "text.lua")
    text = "policy: p\nservices: [a]\nscripts: {s: {source: text.lua}}\n"
    (tmp_path / "policy.yaml").write_text(text)
    errors, _, _ = check_policy(tmp_path / "policy.yaml")
    assert [one.message for one in errors] == [f"{tmp_path}/text.lua {KINDS[make]}"]
    make(tmp_path / "other.yaml")
    errors, _, _ = check_policy(tmp_path)
    assert [str(one) for one in errors] == [f"{tmp_path}/other.yaml:1:1: error: {KINDS[make]}"]


def test_a_link_to_a_file_is_read_as_that_file(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 10)
    (tmp_path / "two").symlink_to("one")
    assert read_file(tmp_path / "two") == b"x" * 10
    assert read_file(tmp_path / "one", limit=10) == b"x" * 10
    assert read_file("/proc/self/status")  # its reported size is 0


@pytest.mark.parametrize(
    "text",
    [
        "policy: p\nservices: [{}]\nscopes:\n{}",
        "policy: p\nservices: [s0]\nbind: {{n: {{s0: [{}]}}}}\nscopes:\n{}",
    ],
)
def test_too_many_rights_are_an_error(text: str, tmp_path: Path) -> None:
    names = ", ".join(f"s{number}" for number in range(3000))
    is_bound = "bind" in text
    place = "<n>" if is_bound else ""
    scopes = "".join(f"  k{one}: {{prefix: 'k{one}{place}:', writers: [s0]}}\n" for one in range(2000))
    (tmp_path / "p.yaml").write_text(text.format(names, scopes))
    with pytest.raises(FileError, match="scopes, keys, legacy forms and channels: at most 50000 of these"):
        load_policy(tmp_path / "p.yaml")


def test_within_a_reading_each_file_is_read_once(tmp_path: Path) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.write_text("before")
    with Reading() as reading:
        assert read_file(there) == b"before"
        with pytest.raises(Unreadable):
            read_file(missing)
        there.write_text("after")
        missing.write_text("now it is there")
        assert read_file(there) == b"before"
        with pytest.raises(Unreadable):
            read_file(missing)
        seen = reading.seen()
    assert read_file(there) == b"after"
    assert seen.look() != seen.digest
    there.write_text("before")
    missing.unlink()
    assert seen.look() == seen.digest


def test_a_given_content_stands_for_a_file_and_has_the_name_of_its_origin(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    with Reading({str(path): Given(b"policy: [", "https://policies.example/shop.yaml")}) as reading:
        assert read_file(path) == b"policy: ["
        assert shown_name(path) == "https://policies.example/shop.yaml"
        with pytest.raises(FileError, match=r"^https://policies\.example/shop\.yaml:1"):
            load_policy(path)
        assert reading.seen().files == ()
    assert shown_name(path) == str(path)


def test_a_reading_within_another_one_knows_what_was_read_since_and_reads_the_same(tmp_path: Path) -> None:
    before, after, given = (str(tmp_path / name) for name in ("before", "after", "given"))
    for path in (before, after):
        Path(path).write_text("one")
    with Reading({given: Given(b"elsewhere", "https://host/given")}) as outer:
        read_file(before)
        read_file(after)
        Path(after).write_text("two")
        with Reading() as inner:
            assert read_file(after) == b"one"
            assert read_file(given) == b"elsewhere"
            assert shown_name(given) == "https://host/given"
        assert inner.contents() == {after: b"one", given: b"elsewhere"}
        read_file(before)
    assert outer.contents() == {before: b"one", after: b"one"}
