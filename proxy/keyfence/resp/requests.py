# cython: annotation_typing=False
"""Splits a client's bytes into requests.

Rule: every request has exactly one reading. It is an array of bulk strings or an inline command. Bytes that a
server could read differently (a header that ends in a bare LF, a bulk string without a CRLF after it, a
number such as `+3` or `03`) are refused, never repaired. So the forwarded bytes hold exactly the arguments
that were evaluated.

Error texts and inline quoting are those of Redis (`src/networking.c`: processInlineBuffer,
processMultibulkBuffer; `src/sds.c`: sdssplitargs; `src/util.c`: string2ll).
"""

from __future__ import annotations

import ctypes
from array import array
from functools import lru_cache
from typing import cast

from .limits import MAX_ARGUMENTS, MAX_BULK, ProtocolError, RequestLimits, RequestTooLarge

_CR = 13
_LF = 10
_ZERO = 48
_NINE = 57
_STAR = 42
_DOLLAR = 36
# This many digits always fit a signed 64-bit integer. `_read_number_slowly` reads longer numbers.
_SAFE_DIGITS = 18
_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1

# The limits of `peek`: arguments in all, and digits of a bulk string's length.
_MOST_PEEKED = 64
_DIGITS_PEEKED = 5
# Where the arguments of the last peeked request begin and end in its reader's `data()`. All readers share it,
# so that it takes no memory for a connection.
PLACES = array("q", bytes(2 * 8 * _MOST_PEEKED))
_PLACES = PLACES

# A bulk string of more bytes than this can be streamed instead of being held.
LARGE = 1024 * 1024
# How many bytes of its beginning are kept. Every command and option name is shorter.
HEAD = 256


# Stands in for the argument list while no request is being read.
_NO_ARGUMENTS: list[bytes] = []


# A longer list of arguments is hidden from Python's garbage collector.
_MANY_ARGUMENTS = 1_000


def _uncollected(arguments: list[bytes]) -> list[bytes]:
    """Returns the list, which no garbage collection looks at any more.

    A collection looks at each argument: 500,000 take 50 to 100 ms, in which no client is served, and a list
    that is being read lives through several. Arguments refer to nothing, so none is part of a cycle.
    """
    ctypes.pythonapi.PyObject_GC_UnTrack(ctypes.py_object(arguments))
    return arguments


class StreamedBulk(bytes):
    """Replaces a bulk string that was streamed: its first HEAD bytes, and its `size` in bytes."""

    size: int

    def __new__(cls, head: bytes, size: int) -> StreamedBulk:
        made = super().__new__(cls, head)
        made.size = size
        return made


class Bounds:
    """Request limits as C integers when compiled. Readers with equal limits share one object."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.max_arguments = limits.max_arguments
        self.max_bulk = limits.max_bulk
        self.max_inline = limits.max_inline
        self.max_request = limits.max_request
        self.max_held = limits.max_held


_bounds_of = lru_cache(maxsize=16)(Bounds)


class RequestReader:
    """Reads requests from the bytes of one client, in pieces of any size.

    Call `feed` with received bytes, then `next` until it returns None. The offsets `start` and `end` count
    from an arbitrary point and may be negative; `end - start` is the request's size. Requests that `next`
    returns between two calls of `feed` are contiguous, so one `span` can cover several of them.

    Three buffers hold the bytes that are not consumed:

    - `_buffer` is being read.
    - `_head` precedes it, and belongs to a request whose earlier parts are parsed (offset -1 is its last
      byte).
    - `_tail` follows it, and is set aside until it is long enough to make progress.

    So each byte is moved a fixed number of times, even if the pieces are tiny.

    A request with a bulk string of more than LARGE bytes can be streamed. While `is_large` is true, each call
    of `take_partial` returns the bytes that have come since the last one. `next` then returns the arguments
    with `StreamedBulk` values among them, and `start` to `end` is the part that was not yet taken. That part
    always has at least the request's last two bytes.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.start = 0
        self.end = 0
        # The last peeked request: its number of arguments, and the offsets in `data()` of the first argument
        # (the command's name) and the second.
        self.count = 0
        self.name_at = self.name_end = 0
        self.key_at = self.key_end = 0
        self._buffer = b""
        self._head: bytearray | None = None
        self._tail: bytearray | None = None
        self._begin = 0  # where the current request begins
        self._cursor = 0  # the first byte that is not parsed
        self._stuck = True  # more bytes are needed …
        self._missing = 0  # … at least this many; 0: the end of a line is needed
        self._arguments = _NO_ARGUMENTS  # of the current request
        self._awaited = 0  # its bulk strings that are still to come
        self._bulk = -1  # length of the current bulk string; -1: its header is not read yet
        self._number = 0
        self._error: ProtocolError | None = None
        self._taken = 0  # bytes of the current request that `take_partial` has returned
        self._streamed = 0  # bytes of it in large bulk strings, which are not held
        self._skip = 0  # bytes of a large bulk string that are still to come
        # The first bytes and the length of the current large bulk string, once a part of it was taken.
        self._large: bytes | None = None
        self._large_size = 0

    @property
    def limits(self) -> RequestLimits:
        """The limits for lengths announced from now on. Earlier ones were checked against the old limits."""
        return self._bounds.limits

    @limits.setter
    def limits(self, limits: RequestLimits) -> None:
        self._bounds = _bounds_of(limits)

    def pending(self) -> int:
        """How many fed bytes belong to no request returned so far."""
        held = len(self._buffer) - self._begin
        return held if self._tail is None else held + len(self._tail)

    @property
    def is_large(self) -> bool:
        """Whether the reader is inside a bulk string of more than LARGE bytes."""
        return self._error is None and (self._skip > 0 or (self._stuck and self._bulk > LARGE))

    def announced(self) -> int:
        """The minimum size of the current request in bytes, according to the headers read so far."""
        return self._taken + self._cursor - self._begin + max(self._bulk, 0) + self._skip

    def take_partial(self) -> bytes:
        """Return the bytes of a large request that were not taken before. Call only while `is_large`."""
        got = self._buffer[self._cursor :] + (self._tail or b"")
        out = self.span(self._begin, self._cursor)
        if self._large is None:
            self._large = b""
            self._large_size = self._skip = self._bulk
            self._streamed += self._bulk
        part = got[: self._skip]
        if len(self._large) < HEAD:
            self._large += part[: HEAD - len(self._large)]
        self._skip -= len(part)
        out += part
        self._taken += len(out)
        self._bulk = 0  # after the skipped bytes, only its CRLF is still to come
        self._buffer = got[len(part) :]
        self._head = self._tail = None
        self._begin = self._cursor = 0
        self._stuck = self._skip > 0
        self._missing = 1
        return out

    def feed(self, data: bytes) -> None:
        """Add received bytes. Invalidates all offsets.

        Calling it again before `next` has returned None is allowed, but copies the pending bytes.
        """
        if not data:
            return
        size = len(self._buffer)
        if self._begin == size:
            self._head = None
            self._buffer = data
            self._begin = self._cursor = 0
            self._stuck = False
            return
        if self._error is not None or (self._stuck and not self._helps(data)):
            if self._tail is None:
                self._tail = bytearray()
            self._tail += data
            return
        if self._begin >= 0 or self._head is None:
            self._head = bytearray(self._buffer[self._begin : self._cursor])
        else:
            self._head += self._buffer[: self._cursor]
        self._buffer = b"".join((self._buffer[self._cursor :], self._tail or b"", data))
        self._tail = None
        self._begin = -len(self._head)
        self._cursor = 0
        self._stuck = False

    def _helps(self, data: bytes) -> bool:
        """Whether `next` can make progress or raise an error with `data` added."""
        aside = len(data) if self._tail is None else len(self._tail) + len(data)
        if self._missing:
            return aside >= self._missing
        return b"\n" in data or len(self._buffer) - self._cursor + aside > self._bounds.max_inline

    def next(self) -> list[bytes] | None:
        """Return the arguments of the next request, or None if more bytes are needed.

        An empty list is a request that gets no reply: `*0`, `*-1` or a blank line. Raises ProtocolError for
        bytes that are not a request, and again at every later call.
        """
        if self._stuck or self._skip:
            return None
        if self._error is not None:
            raise type(self._error)(str(self._error))
        buffer = self._buffer
        raw = buffer
        size = len(buffer)
        if not self._awaited:
            if self._cursor >= size:
                self._stuck = True
                self._missing = 1
                return None
            if raw[self._cursor] != _STAR:
                return self._read_inline()
            if not self._read_number(_STAR):
                return None
            if self._number <= 0:
                return self._finish([])
            self._check_count()
            self._awaited = self._number
            self._arguments = [] if self._number <= _MANY_ARGUMENTS else _uncollected([])
        arguments = self._arguments
        while self._awaited:
            if self._bulk < 0:
                if not self._read_number(_DOLLAR):
                    return None
                self._check_bulk()
                self._bulk = self._number
            cursor = self._cursor
            end = cursor + self._bulk
            if size - 2 < end:
                self._stuck = True
                self._missing = end + 2 - size
                return None
            if raw[end] != _CR or raw[end + 1] != _LF:
                raise self._fail("expected CRLF after bulk")
            if self._large is None:
                arguments.append(raw[cursor:end])
            else:
                arguments.append(StreamedBulk(self._large, self._large_size))
                self._large = None
            self._bulk = -1
            self._cursor = end + 2
            self._awaited -= 1
        return self._finish(arguments)

    def peek(self) -> bool:
        """Consume the next request if it is complete and has few, short arguments. Sets only the offsets:
        those of all its arguments are in PLACES until a reader peeks again.

        Returns False for any other request and for malformed bytes, which `next` has to read. Never raises.
        tests/resp/test_requests.py shows that `peek` and `next` read the same requests.
        """
        if self._awaited or self._stuck or self._skip or self._error is not None:
            return False
        raw = self._buffer
        size = len(self._buffer)
        at = self._cursor
        if size - at < 5 or raw[at] != _STAR:
            return False
        count = raw[at + 1] - _ZERO
        at += 2
        if 1 <= count <= 9 and _ZERO <= raw[at] <= _NINE:
            count = count * 10 + (raw[at] - _ZERO)
            at += 1
        elif count > 9:
            return False
        if raw[at] != _CR or raw[at + 1] != _LF:
            return False
        if count < 1 or count > _MOST_PEEKED or count > self._bounds.max_arguments:
            return False
        at += 2
        for index in range(count):
            if at >= size or raw[at] != _DOLLAR:
                return False
            at += 1
            stop = min(size, at + _DIGITS_PEEKED)
            first = at
            length = 0
            while at < stop and _ZERO <= raw[at] <= _NINE:
                length = length * 10 + (raw[at] - _ZERO)
                at += 1
            if at == first or (at > first + 1 and raw[first] == _ZERO) or length > self._bounds.max_bulk:
                return False
            if size - at < 2 or raw[at] != _CR or raw[at + 1] != _LF:
                return False
            at += 2
            end = at + length
            if size - 2 < end or raw[end] != _CR or raw[end + 1] != _LF:
                return False
            _PLACES[2 * index] = at
            _PLACES[2 * index + 1] = end
            at = end + 2
        if at - self._cursor > self._bounds.max_request or at - self._cursor > self._bounds.max_held:
            return False
        self.count = count
        self.name_at, self.name_end = _PLACES[0], _PLACES[1]
        if count > 1:
            self.key_at, self.key_end = _PLACES[2], _PLACES[3]
        self.start = self._cursor
        self.end = self._begin = self._cursor = at
        return True

    def data(self) -> bytes:
        """The buffer that the offsets of a peeked request refer to."""
        return self._buffer

    def reparse(self) -> list[bytes] | None:
        """The arguments of the last peeked request."""
        self._begin = self._cursor = self.start
        return self.next()

    def span(self, start: int, end: int) -> bytes:
        """Return the received bytes from `start` to `end`."""
        if self._head is not None and start < 0:
            before = len(self._head)
            # A view, because a copy of a request with many arguments takes 10 ms and more.
            head = memoryview(self._head)[before + start : before + min(end, 0)]
            return b"".join((head, self._buffer[: max(end, 0)]))
        size = len(self._buffer)
        if start == 0 and end == size:
            return self._buffer
        assert 0 <= start <= end <= size
        raw = self._buffer
        return raw[start:end]

    def return_to(self, start: int, end: int) -> None:
        """Go back to the state after the request from `start` to `end`, so that later requests are read
        again.

        `next` must have returned that request since the last `feed`.
        """
        self.start = start
        self.end = self._begin = self._cursor = end
        self._arguments = _NO_ARGUMENTS
        self._awaited = 0
        self._bulk = -1
        self._stuck = False
        self._error = None

    def take(self) -> bytes:
        """Return the received bytes of the current request, which `span` then no longer has.

        If they are many, they are a bytearray, which nobody changes: a request with many arguments can have
        64 MiB, which take 50 ms to copy.
        """
        head, start, end = self._head, self.start, self.end
        if head is None or start != -len(head) or end < 0 or len(head) < LARGE:
            return self.span(start, end)
        self._head = None
        head += self._buffer[:end]
        return cast(bytes, head)

    def let_go(self) -> None:
        """Free the buffer if all of it was read, because the client may be idle now. Invalidates all
        offsets."""
        if self._begin == len(self._buffer) and not self._skip and self._error is None:
            self._buffer = b""
            self._head = None
            self._begin = self._cursor = 0

    def rest(self) -> bytes:
        """Remove and return all bytes after the last request returned. Works after an error too."""
        rest = self.span(self._begin, len(self._buffer)) + (self._tail or b"")
        self._buffer = b""
        self._head = self._tail = None
        self._begin = self._cursor = self.start = self.end = 0
        self._arguments = _NO_ARGUMENTS
        self._awaited = 0
        self._bulk = -1
        self._taken = self._streamed = self._skip = 0
        self._large = None
        self._stuck = self._error is None
        self._missing = 1
        return rest

    def _finish(self, arguments: list[bytes]) -> list[bytes]:
        self._arguments = _NO_ARGUMENTS
        self.start = self._begin
        self.end = self._begin = self._cursor
        if self._taken:
            self._taken = self._streamed = 0
        return arguments

    def _fail(self, text: str) -> ProtocolError:
        self._error = ProtocolError(f"Protocol error: {text}")
        return self._error

    # --- headers ----------------------------------------------------------------------------------------

    def _read_number(self, marker: int) -> bool:
        """Read a header such as `*3` or `$64` into `_number`. Returns False if it is incomplete."""
        buffer = self._buffer
        raw = buffer
        size = len(buffer)
        at = self._cursor
        if at >= size or raw[at] != marker:
            return self._read_number_slowly(marker)
        at += 1
        stop = min(size, at + _SAFE_DIGITS)
        value = 0
        while at < stop:
            byte = raw[at]
            if byte < _ZERO or byte > _NINE:
                break
            value = value * 10 + (byte - _ZERO)
            at += 1
            if value == 0:
                break
        if size - at < 2 or raw[at] != _CR or raw[at + 1] != _LF or at == self._cursor + 1:
            return self._read_number_slowly(marker)
        self._number = value
        self._cursor = at + 2
        return True

    def _read_number_slowly(self, marker: int) -> bool:
        """Do the work of `_read_number` for headers that are incomplete, negative, long or malformed."""
        newline = self._buffer.find(b"\n", self._cursor)
        if not self._check_line(newline, f"too big {'mbulk' if marker == _STAR else 'bulk'} count string"):
            return False
        first = self._buffer[self._cursor]
        if first != marker:
            raise self._fail(f"expected '$', got '{_show(first)}'")
        number = _parse_int64(self._buffer[self._cursor + 1 : newline])
        if number is None:
            raise self._fail(f"invalid {'multibulk' if marker == _STAR else 'bulk'} length")
        self._number = number
        self._cursor = newline + 1
        return True

    def _check_line(self, newline: int, complaint: str) -> bool:
        """Whether the line at the cursor is complete. `newline` is the position of its LF, or -1."""
        end = newline if newline >= 0 else len(self._buffer)
        if end - self._cursor > self._bounds.max_inline:
            raise self._fail(complaint)
        if newline < 0:
            self._stuck = True
            self._missing = 0
            return False
        return True

    def _check_count(self) -> None:
        if self._number <= self._bounds.max_arguments:
            return
        if self._number > MAX_ARGUMENTS or self._bounds.limits.authenticated:
            raise self._fail("invalid multibulk length")
        raise self._fail("unauthenticated multibulk length")

    def _check_bulk(self) -> None:
        if self._number < 0 or self._number > self._bounds.max_bulk:
            if self._number < 0 or self._number > MAX_BULK or self._bounds.limits.authenticated:
                raise self._fail("invalid bulk length")
            raise self._fail("unauthenticated bulk length")
        size = self._taken + self._cursor - self._begin + self._number + 2
        if size > self._bounds.max_request:
            self._error = RequestTooLarge(
                f"Protocol error: request of more than {self._bounds.max_request} bytes"
            )
            raise self._error
        if size - self._streamed > self._bounds.max_held and self._number <= LARGE:
            most = self._bounds.max_held
            self._error = RequestTooLarge(
                f"Protocol error: request of more than {most} bytes beside its large arguments"
            )
            raise self._error

    # --- inline commands --------------------------------------------------------------------------------

    def _read_inline(self) -> list[bytes] | None:
        newline = self._buffer.find(b"\n", self._cursor)
        if not self._check_line(newline, "too big inline request"):
            return None
        line = self._buffer[self._cursor : newline].removesuffix(b"\r")
        if 0 in line:
            # Redis before 7.2 does not find the end of a line that has a NUL; later versions drop the text
            # after the NUL.
            raise self._fail("null byte in inline request")
        arguments = split_inline(line)
        if arguments is None:
            raise self._fail("unbalanced quotes in request")
        self._cursor = newline + 1
        return self._finish(arguments)


_SPACE = b" \t\n\v\f\r"  # isspace() in the C locale
_WORD_END = b" \t\n\r"
_ESCAPES = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}
_QUOTE = ord('"')
_APOSTROPHE = ord("'")
_BACKSLASH = ord("\\")


def split_inline(line: bytes) -> list[bytes] | None:
    """Split a line as Redis' sdssplitargs does. None if a closing quote, or the space after one, is
    missing."""
    arguments: list[bytes] = []
    at = 0
    size = len(line)
    while True:
        while at < size and line[at] in _SPACE:
            at += 1
        if at >= size:
            return arguments
        argument = bytearray()
        # A quote may open within a word, but its closing quote ends the word.
        while at < size and line[at] not in _WORD_END:
            byte = line[at]
            at += 1
            if byte not in (_QUOTE, _APOSTROPHE):
                argument.append(byte)
                continue
            at = _read_quoted(line, at, byte, argument)
            if at < 0 or (at < size and line[at] not in _SPACE):
                return None
            break
        arguments.append(bytes(argument))


def _read_quoted(line: bytes, at: int, quote: int, into: bytearray) -> int:
    """Append the text from `at` up to the closing `quote`. Return the offset after the quote, -1 if
    missing."""
    size = len(line)
    while at < size:
        byte = line[at]
        if byte == quote:
            return at + 1
        if byte == _BACKSLASH and at + 1 < size:
            if quote == _APOSTROPHE:
                if line[at + 1] == _APOSTROPHE:
                    at += 1
                    byte = _APOSTROPHE
            elif line[at + 1] == ord("x") and _is_hex(line[at + 2 : at + 4]):
                byte = int(line[at + 2 : at + 4], 16)
                at += 3
            else:
                at += 1
                byte = _ESCAPES.get(line[at], line[at])
        into.append(byte)
        at += 1
    return -1


def _is_hex(digits: bytes) -> bool:
    return len(digits) == 2 and all(digit in b"0123456789abcdefABCDEF" for digit in digits)


def _parse_int64(line: bytes) -> int | None:
    """Read a header's number, which a CR must follow, as string2ll does. None if it is not a number."""
    if not line.endswith(b"\r"):
        return None
    text = line[:-1]
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 19:
        return None
    if digits[0] == _ZERO and text != b"0":
        return None
    number = int(text)
    return number if _INT64_MIN <= number <= _INT64_MAX else None


def _show(byte: int) -> str:
    """A byte as error text. Redis writes CR and LF as a space, and any other byte unchanged."""
    if byte in (_CR, _LF):
        return " "
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"
