# cython: annotation_typing=False
"""Cuts what a client sends into requests.

Rule: a request has one reading. It is an array of bulk strings or an inline command, and where a server
might read the same bytes in another way (a header that ends in a bare LF, a bulk string that no CRLF
follows, a number such as `+3` or `03`) the request is refused, never repaired. So the arguments that were
judged are those of the bytes that are forwarded.

The wording of errors and the inline quoting are those of Redis (`src/networking.c`: processInlineBuffer,
processMultibulkBuffer; `src/sds.c`: sdssplitargs; `src/util.c`: string2ll).
"""

from __future__ import annotations

from functools import lru_cache

from .limits import MAX_ARGUMENTS, MAX_BULK, ProtocolError, RequestLimits, RequestTooLarge

_CR = 13
_LF = 10
_ZERO = 48
_NINE = 57
_STAR = 42
_DOLLAR = 36
# So many digits always fit a signed 64-bit integer; longer numbers are read with care in
# `_read_number_slowly`.
_SAFE_DIGITS = 18
_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1

# What `peek` takes for plain: so many arguments in all, and so many digits of a bulk string's length.
_MOST_GLIMPSED = 9
_DIGITS_GLIMPSED = 5

# A bulk string of more than this can be handed on in pieces instead of being held.
LARGE = 1024 * 1024
# Bytes of its beginning that are kept. No word that a server knows is that long.
HEAD = 256


# In the place of a list where no request is under way.
_NO_ARGUMENTS: list[bytes] = []


class HandedOn(bytes):
    """In the place of a bulk string that was handed on as it came: its first HEAD bytes, and its `size`."""

    size: int

    def __new__(cls, head: bytes, size: int) -> HandedOn:
        made = super().__new__(cls, head)
        made.size = size
        return made


class Bounds:
    """Limits as C integers, where this runs compiled; readers with the same ones share them."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.max_arguments = limits.max_arguments
        self.max_bulk = limits.max_bulk
        self.max_inline = limits.max_inline
        self.max_request = limits.max_request
        self.max_held = limits.max_held


_bounds_of = lru_cache(maxsize=16)(Bounds)


class RequestReader:
    """Reads requests from the bytes of one client, in whatever pieces they come.

    Call `feed` with what was received, then `next` until it gives None. Offsets (`start`, `end`) count from
    an arbitrary point; they may be negative, `end - start` is the request's size, and the requests that
    `next` returns between two calls of `feed` lie one after the other, so that one `span` can take several
    of them.

    Three stores hold what is not consumed: `_buffer` is being read; `_head` are the bytes before it that
    belong to a request whose earlier parts are parsed already (offset -1 is its last byte); `_tail` are
    bytes after it, kept aside until there are enough of them to get any further. So each byte is moved a
    fixed number of times, however small the pieces are.

    A request with a bulk string of more than LARGE bytes need not be held: where `is_large` says so,
    `take_partial` hands out what has come of it, again and again, and `next` then returns its arguments
    with `HandedOn` ones among them, `start` to `end` being the rest that was not handed out. That rest is
    never empty: it has the request's last two bytes at least.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self.start = 0
        self.end = 0
        # Of the request that was glimpsed last: its number of arguments, the offsets in `data()` where the
        # first (the command's name) and the second lie, and where what stands behind the third begins.
        self.count = 0
        self.name_at = self.name_end = 0
        self.key_at = self.key_end = 0
        self.options_at = 0
        self._buffer = b""
        self._head: bytearray | None = None
        self._tail: bytearray | None = None
        self._begin = 0  # where the request under way begins
        self._cursor = 0  # the first byte that is not parsed
        self._stuck = True  # nothing can be read before more bytes come …
        self._missing = 0  # … and this many of them are needed; 0: a line's end is
        self._arguments = _NO_ARGUMENTS  # of the request under way
        self._awaited = 0  # bulk strings that are still to come of it
        self._bulk = -1  # length of the bulk string under way; -1: its header is not read
        self._number = 0
        self._error: ProtocolError | None = None
        self._taken = 0  # bytes of the request under way that were handed out
        self._streamed = 0  # bytes of it that are no longer held because they were in large bulk strings
        self._skip = 0  # bytes of a large bulk string that are still to come
        # Of the large bulk string under way, once a part was handed out: how it begins, and its length.
        self._large: bytes | None = None
        self._large_size = 0

    @property
    def limits(self) -> RequestLimits:
        """The limits that hold from here on; what is announced already was judged by those before."""
        return self._bounds.limits

    @limits.setter
    def limits(self, limits: RequestLimits) -> None:
        self._bounds = _bounds_of(limits)

    def pending(self) -> int:
        """How many bytes were fed and belong to no request returned so far."""
        held = len(self._buffer) - self._begin
        return held if self._tail is None else held + len(self._tail)

    @property
    def is_large(self) -> bool:
        """Whether `next` waits within a bulk string of more than LARGE bytes."""
        return self._error is None and (self._skip > 0 or (self._stuck and self._bulk > LARGE))

    def announced(self) -> int:
        """How many bytes the request under way has at least, as far as its headers tell."""
        return self._taken + self._cursor - self._begin + max(self._bulk, 0) + self._skip

    def take_partial(self) -> bytes:
        """Hand out what has come of a large request and was not handed out yet. Only while `is_large`."""
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
        self._bulk = 0  # of what is to come, nothing but the CRLF belongs to it
        self._buffer = got[len(part) :]
        self._head = self._tail = None
        self._begin = self._cursor = 0
        self._stuck = self._skip > 0
        self._missing = 1
        return out

    def feed(self, data: bytes) -> None:
        """Take over what was received. Ends the validity of all offsets.

        Feeding again without having called `next` until None is allowed, but copies what is pending.
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
        """Whether `next` can get further, or has reason to complain, with `data` at hand."""
        aside = len(data) if self._tail is None else len(self._tail) + len(data)
        if self._missing:
            return aside >= self._missing
        return b"\n" in data or len(self._buffer) - self._cursor + aside > self._bounds.max_inline

    def next(self) -> list[bytes] | None:
        """Return the arguments of the next request, or None if more bytes are needed.

        An empty list is a request that gets no reply: `*0`, `*-1`, a blank line. Raises ProtocolError for
        bytes that are no request, and again at every later call.
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
            self._arguments = []
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
                arguments.append(HandedOn(self._large, self._large_size))
                self._large = None
            self._bulk = -1
            self._cursor = end + 2
            self._awaited -= 1
        return self._finish(arguments)

    def peek(self) -> bool:
        """As `next`, for a request that is here in full and has few, short arguments: they are not taken out,
        only the fields above are set. False: it isn't such a one, or none; `next` has to tell.

        It reads what `next` reads (tests/resp/test_requests.py), and complains of nothing.
        """
        if self._awaited or self._stuck or self._skip or self._error is not None:
            return False
        raw = self._buffer
        size = len(self._buffer)
        at = self._cursor
        if size - at < 4 or raw[at] != _STAR or raw[at + 2] != _CR or raw[at + 3] != _LF:
            return False
        count = raw[at + 1] - _ZERO
        if count < 1 or count > _MOST_GLIMPSED or count > self._bounds.max_arguments:
            return False
        at += 4
        for index in range(count):
            if at >= size or raw[at] != _DOLLAR:
                return False
            at += 1
            stop = min(size, at + _DIGITS_GLIMPSED)
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
            if index == 0:
                self.name_at, self.name_end = at, end
            elif index == 1:
                self.key_at, self.key_end = at, end
            at = end + 2
            if index <= 2:
                self.options_at = at
        if at - self._cursor > self._bounds.max_request or at - self._cursor > self._bounds.max_held:
            return False
        self.count = count
        self.start = self._cursor
        self.end = self._begin = self._cursor = at
        return True

    def data(self) -> bytes:
        """What the offsets of a glimpsed request point into."""
        return self._buffer

    def reparse(self) -> list[bytes] | None:
        """The arguments of the request that was glimpsed last."""
        self._begin = self._cursor = self.start
        return self.next()

    def span(self, start: int, end: int) -> bytes:
        """Return exactly the bytes that were received from `start` to `end`."""
        if self._head is not None and start < 0:
            before = len(self._head)
            return bytes(self._head[before + start : before + min(end, 0)]) + self._buffer[: max(end, 0)]
        size = len(self._buffer)
        if start == 0 and end == size:
            return self._buffer
        assert 0 <= start <= end <= size
        raw = self._buffer
        return raw[start:end]

    def return_to(self, start: int, end: int) -> None:
        """Be as when the request from `start` to `end` was returned, which `next` has done since `feed` was
        last called: what stands behind it is going to be read again."""
        self.start = start
        self.end = self._begin = self._cursor = end
        self._arguments = _NO_ARGUMENTS
        self._awaited = 0
        self._bulk = -1
        self._stuck = False
        self._error = None

    def let_go(self) -> None:
        """Keep nothing of what was read: the client may be idle now. Ends the validity of all offsets."""
        if self._begin == len(self._buffer) and not self._skip and self._error is None:
            self._buffer = b""
            self._head = None
            self._begin = self._cursor = 0

    def rest(self) -> bytes:
        """Hand out all bytes after the last request returned, and keep none. Works after an error too."""
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
        """Read a header such as `*3` or `$64` into `_number`. False: it has not come in full."""
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
        """As `_read_number`, for all that is not plain: incomplete, negative, long or wrong."""
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
        """Whether the line at the cursor is complete, `newline` being where its LF is or -1."""
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
            # Redis before 7.2 doesn't see a line's end behind a NUL, later ones drop what follows it.
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
    """Split a line as Redis' sdssplitargs does. None: a quote isn't closed, or no space follows where it
    is."""
    arguments: list[bytes] = []
    at = 0
    size = len(line)
    while True:
        while at < size and line[at] in _SPACE:
            at += 1
        if at >= size:
            return arguments
        argument = bytearray()
        # A quote may begin within a word, but where it closes the word ends too.
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
    """Append what stands from `at` to the closing `quote`; return the offset behind that, -1 if there is
    none."""
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
    """Read a header's number as string2ll does, with the CR that ends the line. None: it is none."""
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
    """A byte for an error's text. Redis writes CR and LF as a space, and any other byte as it is."""
    if byte in (_CR, _LF):
        return " "
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"
