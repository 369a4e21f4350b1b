# cython: annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""What of a key stays the same in all keys that look like it: `user:4711` and `user:42` have one skeleton.

Rule: keys with one skeleton are taken apart alike (`telemetry.shapes.take_apart`;
tests/shapes/test_skeleton.py), so that the shape learnt of one is the shape of all. A key of which that
isn't certain has none. One pass over the bytes, nothing is kept.

Numbers, dates, UUIDs, addresses, hexadecimal digits and ids become one byte each that no printable key holds;
words, versions and separators stay as they are. Where a part could be read in several ways, by its length
or by what stands around it, it stays as it is too, or the key has no skeleton.

Every index is checked against the end of the key before it is used.
"""

from __future__ import annotations

LONGEST = 256  # bytes: of a longer key a shape shows a part only
# What stands for a part of a key.
_INT = 1
_DATE = 2
_HEX = 3
_ID = 4
_UUID = 5
_IP = 6

_DIGIT = 1  # the kinds of byte: 0 ends a part of a key
_LETTER = 2
_JOINT = 3  # / _ . , ; = & ~ + -
_ALIEN = 4  # not printable, or not ASCII
_KIND_OF = bytes(
    _DIGIT
    if chr(byte) in "0123456789"
    else _LETTER
    if chr(byte) in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    else _JOINT
    if chr(byte) in "/_.,;=&~+-"
    else _ALIEN
    if not 0x20 <= byte < 0x7F
    else 0
    for byte in range(256)
)
# 1: a digit that is hexadecimal in any case; 2: in lower case only; 4: in upper case only.
_HEX_OF = bytes(
    1 if chr(byte) in "0123456789" else 2 if chr(byte) in "abcdef" else 4 if chr(byte) in "ABCDEF" else 0
    for byte in range(256)
)
_UUID_LENGTH = 36

_SCRATCH = bytearray(LONGEST)  # a skeleton in the making; nothing else runs meanwhile


def skeleton(key: bytes) -> bytes:
    """The skeleton of a key; empty where there is none."""
    size = len(key)
    if size > LONGEST:
        return b""
    out = _SCRATCH
    length = at = short = 0
    while at < size:
        byte = key[at]
        kind = _KIND_OF[byte]
        if kind == 0:
            # What holds a separator itself, an address of e-mail or of IPv6, a time, is left to the long way.
            if byte == 64 or (byte == 58 and at + 1 < size and key[at + 1] == 58):
                return b""
            if byte == 32 and at and _KIND_OF[key[at - 1]] == _DIGIT:
                return b""
            if byte != 58:
                short = 0
            out[length] = byte
            length += 1
            at += 1
            continue
        end = _end_of_part(key, at, size)
        if end < 0:
            return b""
        # A hardware address or one of IPv6 has at least four such parts between its colons.
        short = short + 1 if end - at <= 4 and _is_hex(key, at, end) else 0
        if short >= 4:
            return b""
        length = _part(key, at, end, out, length)
        if length < 0:
            return b""
        at = end
    raw = out
    return bytes(raw[:length])


def _end_of_part(key: bytes, at: int, size: int) -> int:
    """Where the part of a key that begins at `at` ends; -1 where it may be something that holds
    separators."""
    before = 0
    while at < size:
        kind = _KIND_OF[key[at]]
        if kind == _ALIEN:
            return -1
        if kind == 0:
            break
        if before == _DIGIT and key[at] == 84 and at + 1 < size and _KIND_OF[key[at + 1]] == _DIGIT:
            return -1  # 2024-01-02T03:04
        before = kind
        at += 1
    return at


def _is_hex(key: bytes, at: int, end: int) -> bool:
    while at < end:
        if not _HEX_OF[key[at]]:
            return False
        at += 1
    return True


def _part(key: bytes, start: int, end: int, out: bytearray, length: int) -> int:
    """Put what stands for `key[start:end]` behind the first `length` bytes of `out`. Returns its new length,
    -1 where nothing stands for it."""
    digits = letters = joints = 0
    at = start
    while at < end:
        kind = _KIND_OF[key[at]]
        if kind == _DIGIT:
            digits += 1
        elif kind == _LETTER:
            letters += 1
        else:
            joints += 1
        at += 1
    if digits == 0:
        return _as_it_is(key, start, end, out, length)
    if joints == 0:
        return _piece(key, start, end, out, length, True)
    if end - start == _UUID_LENGTH and _is_uuid(key, start):
        out[length] = _UUID
        return length + 1
    if letters == 0:
        whole = _whole(key, start, end)
        if whole:
            out[length] = whole
            return length + 1
    return _pieces(key, start, end, out, length)


def _as_it_is(key: bytes, at: int, end: int, out: bytearray, length: int) -> int:
    while at < end:
        out[length] = key[at]
        length += 1
        at += 1
    return length


def _piece(key: bytes, start: int, end: int, out: bytearray, length: int, alone: bool) -> int:
    """Put what stands for letters and digits, of which one is a digit. Letters before all digits stay where
    it isn't `alone`: with what stands before them they may be a numbered word."""
    leading = start
    while leading < end and _KIND_OF[key[leading]] == _LETTER:
        leading += 1
    if leading == start and _is_number(key, start, end):
        out[length] = _DATE if _is_date(key, start, end) else _INT
        return length + 1
    if _is_version(key, start, end):
        return _as_it_is(key, start, end, out, length)
    stands = _HEX if _is_long_hex(key, start, end) else _ID
    if _is_numbered(key, start, leading, end) and (not alone or (stands == _ID and leading - start > 2)):
        length = _as_it_is(key, start, leading, out, length)
        stands = stands if stands == _HEX else _INT
    out[length] = stands
    return length + 1


def _is_numbered(key: bytes, start: int, leading: int, end: int) -> bool:
    """Whether behind the letters up to `leading` there are nothing but digits, 20 at most."""
    return leading > start and end - leading <= 20 and _is_number(key, leading, end)


def _is_number(key: bytes, at: int, end: int) -> bool:
    while at < end:
        if _KIND_OF[key[at]] != _DIGIT:
            return False
        at += 1
    return True


def _is_version(key: bytes, start: int, end: int) -> bool:
    """Whether it reads v1: that is a word."""
    return (
        (key[start] == 118 or key[start] == 86) and 2 <= end - start <= 4 and _is_number(key, start + 1, end)
    )


def _is_long_hex(key: bytes, at: int, end: int) -> bool:
    """Eight hexadecimal digits or more, in one case."""
    if end - at < 8:
        return False
    cases = 0
    while at < end:
        case = _HEX_OF[key[at]]
        if not case:
            return False
        cases |= case
        at += 1
    return cases < 6  # not both


def _is_uuid(key: bytes, start: int) -> bool:
    """Of UUID_LENGTH bytes."""
    for at in range(_UUID_LENGTH):
        byte = key[start + at]
        if at in (8, 13, 18, 23):
            if byte != 45:
                return False
        elif not _HEX_OF[byte]:
            return False
    return True


def _is_date(key: bytes, at: int, end: int) -> bool:
    """Year, month, day, with `-`, `/`, `.`, `_` or nothing between them."""
    if not 8 <= end - at <= 10:
        return False
    if not ((key[at] == 49 and key[at + 1] == 57) or (key[at] == 50 and key[at + 1] == 48)):
        return False
    if not _is_number(key, at, at + 4):
        return False
    at += 4
    if _joins_date(key[at]):
        at += 1
    if end - at < 4 or not _is_number(key, at, at + 2):
        return False
    number = 10 * (key[at] - 48) + key[at + 1] - 48
    if not 1 <= number <= 12:
        return False
    at += 2
    if _joins_date(key[at]):
        at += 1
    if end - at != 2 or not _is_number(key, at, end):
        return False
    number = 10 * (key[at] - 48) + key[at + 1] - 48
    return 1 <= number <= 31


def _joins_date(byte: int) -> bool:
    return byte in (45, 46, 47, 95)


def _whole(key: bytes, start: int, end: int) -> int:
    """What a part of digits and joints is as a whole: a date, an address, a number; 0: none of them."""
    if _is_date(key, start, end):
        return _DATE
    dots = minus = others = run = longest = 0
    empty = False
    at = start
    while at < end:
        byte = key[at]
        if _KIND_OF[byte] == _DIGIT:
            run += 1
            longest = max(longest, run)
        else:
            if byte == 45 and at == start:
                minus = 1
            else:
                if byte == 46:
                    dots += 1
                else:
                    others += 1
                empty = empty or run == 0
            run = 0
        at += 1
    if others or empty or run == 0:
        return 0
    if dots == 3 and longest <= 3 and not minus:
        return _IP
    return _INT if dots <= 1 else 0


def _pieces(key: bytes, start: int, end: int, out: bytearray, length: int) -> int:
    """Put what stands for pieces between joints.

    Where each is a word, a number, a date or a long hexadecimal one, they are taken one by one, or all is an
    id for a word that is none. Two pieces may also be a word and an id. All else can't be told from here.
    """
    pieces = ids = joints = 0
    begun = length
    at = start
    while at < end:
        if _KIND_OF[key[at]] == _JOINT:
            out[length] = key[at]
            length += 1
            joints += 1
            at += 1
            continue
        stop = at
        digits = 0
        while stop < end and _KIND_OF[key[stop]] != _JOINT:
            digits += _KIND_OF[key[stop]] == _DIGIT
            stop += 1
        pieces += 1
        if digits == 0:
            length = _as_it_is(key, at, stop, out, length)
        elif _is_version(key, at, stop):
            return _as_it_is(key, start, end, out, begun)  # v10.0.0.1
        else:
            if _is_long_hex(key, at, stop):
                if stop < end and _KIND_OF[key[at]] == _LETTER:
                    return -1  # abcdef10.0.0.1
            elif not _is_number(key, at, stop):
                ids += 1
            length = _piece(key, at, stop, out, length, False)
        at = stop
    if ids == 0:
        # What remains of a part where words were taken from its ends may be a UUID of odd pieces.
        return length if end - start <= _UUID_LENGTH else -1
    if pieces == 2 and joints == 1 and ids == 1:
        return length if _has_letters_only_piece(key, start, end) else -1
    return -1


def _has_letters_only_piece(key: bytes, start: int, end: int) -> bool:
    """Whether one of two pieces holds letters only."""
    at = start
    while _KIND_OF[key[at]] == _LETTER:
        at += 1
    if _KIND_OF[key[at]] == _JOINT:
        return True
    at = end - 1
    while _KIND_OF[key[at]] == _LETTER:
        at -= 1
    return _KIND_OF[key[at]] == _JOINT
