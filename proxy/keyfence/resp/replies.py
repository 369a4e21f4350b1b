# cython: annotation_typing=False
"""Finds where replies end in a server's stream.

Rule: this module finds boundaries only. It builds no values, changes no bytes, and keeps at most the few
bytes of an incomplete header. So memory does not grow with a reply, and the client gets exactly the server's
bytes. Of errors' lines it notes those that begin with one of NOTED, at any depth (`errors`).

It reads RESP2 and RESP3, with all types of the RESP3 specification except the streamed ones (`$?`, `*?`, `;`,
`.`), which no server sends. A simple string or number ends at the first CRLF; its content is not checked.
"""

from __future__ import annotations

from typing import NamedTuple

# A server can be configured for strings of more than 512 MiB, and DUMP returns a whole key as one bulk
# string. Nothing is allocated, so these limits only detect garbage.
MAX_BULK_REPLY = 2**32
MAX_ELEMENTS = 2**31
# hiredis, and so redis-py, stops at 9 levels. But a script can return a table some 8,000 levels deep (the
# limit of Lua's stack, LUAI_MAXCSTACK in `deps/lua/src/luaconf.h`), and a reply that Redis can send must
# never end a connection. So this limit only detects garbage. An open level costs a few bytes and no
# recursion.
MAX_DEPTH = 65_536

_CR = 13
_LF = 10
_ZERO = 48
_ONE = 49
_NINE = 57
# The longest valid header is shorter: a type, a sign, 19 digits and CRLF.
_MAX_HEADER = 32
_SAFE_DIGITS = 18

_PUSH = 62
_ATTRIBUTE = 124
_ARRAY = 42
_BULK_STRING = 36
_PLUS = 43
_MINUS = 45
_COLON = 58

# The limits of a plain reply: bytes of a line, and digits of a bulk string's length.
_SHORT_LINE = 32
_SHORT_NUMBER = 7

# What an error's line is, as its beginning shows it.
_ORDINARY = 0
_UNDECIDED = 1
_NOTED = 2
# The words of errors that are noted. A cluster's node answers with the first two, which name another node's
# address. A replica of Valkey names its primary's to clients that have sent CLIENT CAPA redirect. A replica
# answers writes with READONLY. TRYAGAIN says that some keys of a command have moved to another node and some
# have not. The other ones say that a node does not serve now.
TO_NODES = ("MOVED", "ASK")
TO_PRIMARY = "REDIRECT"
REDIRECTS = (*TO_NODES, TO_PRIMARY)
READ_ONLY = "READONLY"
DOUBTS = (READ_ONLY, "MASTERDOWN", "LOADING", "CLUSTERDOWN")
NOTED = (*REDIRECTS, "TRYAGAIN", *DOUBTS)
_NOTED_WORDS = tuple(word.encode() + b" " for word in NOTED)
_LONGEST_WORD = max(map(len, _NOTED_WORDS))

# What follows a frame's first byte.
_LINE = 1  # the rest of one line
_BULK = 2  # a length, that number of bytes, and CRLF
_AGGREGATE = 3  # a count, and that number of frames
_PAIRS = 4  # a count, and twice that number of frames
_SHAPE_OF = {
    **dict.fromkeys(b"+-:_#,(", _LINE),
    **dict.fromkeys(b"$!=", _BULK),
    **dict.fromkeys(b"*~>", _AGGREGATE),
    **dict.fromkeys(b"%|", _PAIRS),
}
_SHAPES = bytes(_SHAPE_OF.get(type_, 0) for type_ in range(256))


class ReplyError(Exception):
    """The server's bytes are not RESP. The connection must be closed, and the replies due on it fail."""


class ErrorPart(NamedTuple):
    """The part of a noted error's line that is in the data of one `advance`.

    It is at `begin` to `end`, without the first `-` and without CRLF. `word` is the error's first word.
    `sent`: how many bytes of the line were in earlier data; `is_rest`: the word itself was there.
    """

    word: str
    begin: int
    end: int
    sent: int
    is_rest: bool


class ReplyFramer:
    """Tracks the replies of one server connection from chunk to chunk.

    After each `advance`:

    - `completed`: how many replies ended in that call. Pushes do not count.
    - `at_boundary`: whether the position is between two top-level frames.
    - `push`: whether the last frame that ended was a push.
    - `kind`: the first byte of the last top-level frame that began; 0 before the first one, and while only
      its attributes have come.
    - `frame_at`: where that frame begins in the data of that call, or where the call started to read if the
      frame began in earlier data.
    - `errors`: the noted errors since `take_errors`; None if there are none, as is almost always the case.
    """

    def __init__(self) -> None:
        self.completed = 0
        self.at_boundary = True
        self.push = False
        self.kind = 0
        self.frame_at = 0
        self.errors: list[ErrorPart] | None = None
        self._line_is = _ORDINARY  # the error's line that is incomplete …
        self._line = b""  # … and its beginning, as far as it decides that
        self._partial = b""  # the beginning of an incomplete header
        self._in_line = False  # within a simple value's line …
        self._after_cr = False  # … whose CR came last
        self._skip = 0  # bytes still to come of a bulk string, including its CRLF
        self._depth = 0  # number of open aggregates
        self._left = 0  # frames still to come of the innermost aggregate
        self._is_attribute = False  # whether the innermost aggregate is an attribute
        self._outer: list[tuple[int, bool]] = []  # these two values for the aggregates around it
        self._type = 0  # type of the last header …
        self._number = 0  # … and the number in it, -1 for null
        self._error = ""

    def advance(self, data: bytes, start: int, replies: int, stop_after_push: bool = False) -> int:
        """Scan `data` from `start` until `replies` replies have ended or `data` ends. Return the position.

        With `stop_after_push`, the scan also stops after a push frame. The next call continues from the
        returned position, in the same data or in the data that follows it. Raises ReplyError for bytes that
        are not a reply, and again at every later call.
        """
        size = len(data)
        at = start
        self.completed = 0
        if at < 0 or at > size:
            raise ValueError(f"start is {start}, outside the data")
        if self._error:
            raise ReplyError(self._error)
        self.frame_at = at
        while at < size and self.completed < replies:
            if self.at_boundary or (
                self._depth and not self._skip and not self._in_line and not self._partial
            ):
                at = self._skip_plain(data, at, replies)
                if at == size or self.completed == replies:
                    break
            if self._skip:
                at = self._skip_bulk(data, at)
                ended = self._skip == 0
            elif self._in_line:
                at = self._finish_line(data, at) if self._line_is == _ORDINARY else self._go_on(data, at)
                ended = not self._in_line
            else:
                at = self._read_header(data, at)
                ended = self._type != 0 and self._begin()
            if not ended or not self._close():
                continue
            self.at_boundary = True
            self.push = self.kind == _PUSH
            if not self.push:
                self.completed += 1
            elif stop_after_push:
                break
        return at

    def _skip_plain(self, data: bytes, at: int, replies: int) -> int:
        """Skip complete frames of the most frequent kinds: short lines, bulk strings and RESP2's nulls.

        It begins between two frames. It stops before any other frame, such as an error, and before the last
        one of an aggregate; `advance` then reads these.
        """
        raw = data
        size = len(data)
        most = replies - self.completed if self.at_boundary else self._left - 1
        done = last = 0
        while at < size and done < most:
            kind = raw[at]
            end = at + 1
            if kind in (_PLUS, _COLON):
                stop = min(size - 1, end + _SHORT_LINE)
                while end < stop and raw[end] != _CR:
                    end += 1
                if end >= stop or raw[end + 1] != _LF:
                    break
            elif kind in (_BULK_STRING, _ARRAY) and _is_null(raw, end, size):
                end += 2
            elif kind == _BULK_STRING:
                stop = min(size - 1, end + _SHORT_NUMBER)
                number = 0
                while end < stop and _ZERO <= raw[end] <= _NINE:
                    number = number * 10 + (raw[end] - _ZERO)
                    end += 1
                if end == at + 1 or end >= stop or raw[end] != _CR or raw[end + 1] != _LF:
                    break
                if raw[at + 1] == _ZERO and end > at + 2:
                    break
                end += 2 + number
                if end > size - 2 or raw[end] != _CR or raw[end + 1] != _LF:
                    break
            else:
                break
            done += 1
            last = kind
            at = end + 2
        if not self.at_boundary:
            self._left -= done
        elif done:
            self.completed += done
            self.kind = last
            self.push = False
        return at

    def _begin(self) -> bool:
        """Enter the frame whose header was read. Return whether the frame has already ended."""
        type_ = self._type
        shape = _SHAPES[type_]
        if type_ == _PUSH and self._depth:
            raise self._fail("a push frame inside a reply")
        if shape == _LINE:
            return not self._in_line
        if shape == _BULK:
            if self._number > MAX_BULK_REPLY:
                raise self._fail(f"a bulk string of {self._number} bytes")
            self._skip = self._number + 2 if self._number >= 0 else 0
            return self._number < 0
        if self._number > MAX_ELEMENTS:
            raise self._fail(f"an aggregate of {self._number} elements")
        if self._number <= 0:
            return type_ != _ATTRIBUTE  # an empty attribute belongs to the frame that follows
        if self._depth == MAX_DEPTH:
            raise self._fail(f"aggregates nested deeper than {MAX_DEPTH}")
        if self._depth:
            self._outer.append((self._left, self._is_attribute))
        self._depth += 1
        self._left = self._number * 2 if shape == _PAIRS else self._number
        self._is_attribute = type_ == _ATTRIBUTE
        return False

    def _close(self) -> bool:
        """Count the frame that ended and close the aggregates that end with it. Return whether a top-level
        frame ended."""
        while self._depth:
            self._left -= 1
            if self._left:
                return False
            attribute = self._is_attribute
            self._depth -= 1
            if self._depth:
                self._left, self._is_attribute = self._outer.pop()
            if attribute:
                return False  # the frame that the attribute belongs to follows
        return True

    def _skip_bulk(self, data: bytes, at: int) -> int:
        raw = data
        size = len(data)
        stop = at + self._skip
        if stop > size:
            self._skip = stop - size
            if self._skip == 1 and at < size and raw[size - 1] != _CR:
                raise self._fail("no CRLF after a bulk string")
            return size
        if raw[stop - 1] != _LF or (stop - 2 >= at and raw[stop - 2] != _CR):
            raise self._fail("no CRLF after a bulk string")
        self._skip = 0
        return stop

    def _finish_line(self, data: bytes, at: int) -> int:
        """Skip to the end of a simple value's line. `_in_line` stays set if the end has not come yet."""
        raw = data
        size = len(data)
        self._in_line = False
        if self._after_cr and at < size and raw[at] == _LF:
            self._after_cr = False
            return at + 1
        # Most lines are short, so a loop over the first bytes is faster than a call to find.
        stop = min(size - 1, at + 24)
        while at < stop:
            if raw[at] == _CR and raw[at + 1] == _LF:
                return at + 2
            at += 1
        end = data.find(b"\r\n", at)
        if end >= 0:
            return end + 2
        self._in_line = True
        self._after_cr = size > 0 and raw[size - 1] == _CR
        return size

    def _read_header(self, data: bytes, at: int) -> int:
        """Read a frame's first byte and its number, or the whole line of a simple value.

        `_type` is 0 afterwards if the header is incomplete.
        """
        raw = data
        size = len(data)
        self._type = 0
        if self._partial or at >= size:
            return self._read_header_slowly(data, at)
        type_ = raw[at]
        if self._depth == 0:
            if self.at_boundary:
                self.frame_at = at
            self.at_boundary = False
            self.kind = 0 if type_ == _ATTRIBUTE else type_
        shape = _SHAPES[type_]
        if shape == _LINE:
            self._type = type_
            self._after_cr = False
            may_be_noted = type_ == _MINUS and self.kind != _PUSH
            return self._read_error(data, at + 1) if may_be_noted else self._finish_line(data, at + 1)
        digits = at + 1
        at = digits
        if type_ in (_BULK_STRING, _ARRAY) and _is_null(raw, at, size):
            self._type = type_
            self._number = -1
            return at + 4
        stop = min(size, digits + _SAFE_DIGITS)
        number = 0
        while at < stop:
            byte = raw[at]
            if byte < _ZERO or byte > _NINE:
                break
            number = number * 10 + (byte - _ZERO)
            at += 1
            if number == 0:
                break
        if shape == 0 or at == digits or size - at < 2 or raw[at] != _CR or raw[at + 1] != _LF:
            return self._read_header_slowly(data, digits - 1)
        self._type = type_
        self._number = number
        return at + 2

    def _read_error(self, data: bytes, at: int) -> int:
        """Skip an error's line, whose text begins at `at`, and note it if its word is one of those."""
        self._line_is = _UNDECIDED
        self._line = b""
        return self._go_on(data, at)

    def _go_on(self, data: bytes, at: int) -> int:
        """Skip more of an error's line that is undecided or noted."""
        stop = self._finish_line(data, at)
        end = stop
        if not self._in_line:
            end = max(at, stop - 2)
        elif self._after_cr:
            end = max(at, stop - 1)
        sent = len(self._line)
        is_rest = self._line_is == _NOTED
        if not is_rest:
            self._line += data[at : min(end, at + _LONGEST_WORD)]
            self._line_is = _kind_of(self._line)
        if self._line_is == _NOTED:
            word = self._line.split(b" ")[0].decode()
            if self.errors is None:
                self.errors = []
            self.errors.append(ErrorPart(word, at, end, sent, is_rest))
        if not self._in_line:
            self._line_is = _ORDINARY
        return stop

    def take_errors(self) -> list[ErrorPart]:
        """Returns the noted errors since the last call. Their places are in the data of the last
        `advance`, so call it after each one."""
        errors, self.errors = self.errors or [], None
        return errors

    def _read_header_slowly(self, data: bytes, at: int) -> int:
        """Do the work of `_read_header` for headers that are incomplete or malformed."""
        newline = data.find(b"\n", at, at + _MAX_HEADER)
        stop = newline + 1 if newline >= 0 else min(len(data), at + _MAX_HEADER)
        header = self._partial + data[at:stop]
        if header and _SHAPES[header[0]] < _BULK:
            raise self._fail(_complaint(header))
        if newline < 0 or len(header) > _MAX_HEADER:
            if len(header) >= _MAX_HEADER:
                raise self._fail(_complaint(header))
            self._partial = header
            return stop
        text = header[1:-2]
        if header[-2:] != b"\r\n" or not _is_length(text, header[0]):
            raise self._fail(_complaint(header))
        self._partial = b""
        self._type = header[0]
        self._number = int(text)
        return stop

    def _fail(self, what: str) -> ReplyError:
        self._error = f"the server's reply cannot be followed: {what}"
        return ReplyError(self._error)


def _kind_of(line: bytes) -> int:
    """What an error's line that begins like this is."""
    if line.startswith(_NOTED_WORDS):
        return _NOTED
    return _UNDECIDED if any(word.startswith(line) for word in _NOTED_WORDS) else _ORDINARY


def _is_null(data: bytes, at: int, size: int) -> bool:
    """Whether `-1` and CRLF stand at `at`, which makes a header RESP2's null."""
    return (
        at + 4 <= size
        and data[at] == _MINUS
        and data[at + 1] == _ONE
        and data[at + 2] == _CR
        and data[at + 3] == _LF
    )


def _is_length(text: bytes, type_: int) -> bool:
    if text == b"-1":
        return type_ in (_BULK_STRING, _ARRAY)  # RESP2's nulls
    return text == b"0" or (text.isdigit() and text[0] != _ZERO and len(text) <= _SAFE_DIGITS)


def _complaint(header: bytes) -> str:
    is_type = _SHAPES[header[0]] != 0
    if header[0] in b";." or (is_type and header[1:2] == b"?"):
        return "streamed types are not supported"
    if not is_type:
        return f"no type begins with {header[:1]!r}"
    # the bytes after it may belong to a value, so they stay out of logs
    return f"no length after {header[:1]!r}"
