"""The list of differences: its page, and examples."""

from __future__ import annotations

from tests.differential.differences import (
    CLIENT_ID,
    CLIENT_LIST,
    IGNORED,
    INFO_VALUES,
    MONITOR_LINE,
    PAGE,
    masked,
    page,
)


def test_the_differences_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.differential.differences"


def test_each_difference_has_a_reason() -> None:
    assert all(one.where and one.what and one.reason for one in IGNORED)


def test_only_listed_parts_are_masked() -> None:
    assert masked(b":12\r\n", [CLIENT_ID]) == b":*\r\n"
    line = b"$42\r\nid=7 addr=1.2.3.4:5 name=me db=3 redir=-1 age=2 flags=N\n\r\n"
    assert masked(line, [CLIENT_LIST]) == b"$*\r\nid=* addr=* name=me db=3 redir=-1 age=* flags=N\n\r\n"
    assert masked(b'+1700000000.5 [3 unix:/a] "GET" "k"\r\n', [MONITOR_LINE]) == b'+* [3 *] "GET" "k"\r\n'
    assert (
        masked(b"=30\r\ntxt:# Server\r\nport:6379\r\n", [INFO_VALUES]) == b"$*\r\ntxt:# Server\r\nport:*\r\n"
    )
    assert masked(b"$5\r\nhello\r\n:7\r\n", [MONITOR_LINE, CLIENT_LIST]) == b"$5\r\nhello\r\n:7\r\n"
