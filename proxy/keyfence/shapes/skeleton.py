# cython: annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""The skeleton of a key: its bytes with variable parts replaced. `user:4711` and `user:42` have the same one.

Rule: `shapes.take_apart` splits all keys with the same skeleton in the same way, so the shape of one is the
shape of all (tests/shapes/test_skeleton.py). If that is not certain, the key has no skeleton. The computation
is one pass over the bytes and keeps nothing.

Each number, date, UUID, address, hexadecimal text and id becomes one byte that no printable key contains.
Words, versions and separators stay unchanged. A part that could be read in several ways, because of its
length or its surroundings, also stays unchanged, or the key has no skeleton.

Every index is checked against the end of the key before it is used.
"""

from __future__ import annotations

LONGEST = 256  # bytes; the shape of a longer key shows only a part of it
# The bytes that replace parts of a key.
_INT = 1
_DATE = 2
_HEX = 3
_ID = 4
_UUID = 5
_IP = 6

_DIGIT = 1  # the kinds of bytes; 0 ends a part of a key
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
# 1: a hexadecimal digit in both cases; 2: in lower case only; 4: in upper case only.
_HEX_OF = bytes(
    1 if chr(byte) in "0123456789" else 2 if chr(byte) in "abcdef" else 4 if chr(byte) in "ABCDEF" else 0
    for byte in range(256)
)
_UUID_LENGTH = 36

_SCRATCH = bytearray(LONGEST)  # the buffer for the skeleton; a single thread uses it


def skeleton(key: bytes) -> bytes:
    """The skeleton of a key, or empty if it has none."""
    size = len(key)
    if size > LONGEST:
        return b""
    raw, kinds, out = key, _KIND_OF, _SCRATCH
    length = at = short = 0
    while at < size:
        byte = raw[at]
        kind = kinds[byte]
        if kind == 0:
            # E-mail and IPv6 addresses and times contain separators. Such keys have no skeleton.
            if byte == 64 or (byte == 58 and at + 1 < size and raw[at + 1] == 58):
                return b""
            if byte == 32 and at and kinds[raw[at - 1]] == _DIGIT:
                return b""
            if byte != 58:
                short = 0
            out[length] = byte
            length += 1
            at += 1
            continue
        end = _end_of_part(raw, at, size)
        if end < 0:
            return b""
        # A MAC or IPv6 address has at least four such parts between its colons.
        short = short + 1 if end - at <= 4 and _is_hex(raw, at, end) else 0
        if short >= 4:
            return b""
        length = _part(raw, at, end, out, length)
        if length < 0:
            return b""
        at = end
    return b"" + out[:length]  # `bytes` would copy it again where this runs compiled


def _end_of_part(key: bytes, at: int, size: int) -> int:
    """The end of the part that begins at `at`; -1 if it may belong to a value that contains separators."""
    kinds = _KIND_OF
    before = 0
    while at < size:
        kind = kinds[key[at]]
        if kind == _ALIEN:
            return -1
        if kind == 0:
            break
        if before == _DIGIT and key[at] == 84 and at + 1 < size and kinds[key[at + 1]] == _DIGIT:
            return -1  # 2024-01-02T03:04
        before = kind
        at += 1
    return at


def _is_hex(key: bytes, at: int, end: int) -> bool:
    hexes = _HEX_OF
    while at < end:
        if not hexes[key[at]]:
            return False
        at += 1
    return True


def _part(key: bytes, start: int, end: int, out: bytearray, length: int) -> int:
    """Write the replacement of `key[start:end]` to `out` at `length`. Return the new length, or -1 if the key
    has no skeleton."""
    kinds = _KIND_OF
    digits = letters = joints = 0
    at = start
    while at < end:
        kind = kinds[key[at]]
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
    """Write the replacement of a piece of letters and digits with at least one digit.

    If the piece is not `alone`, letters before its digits stay: together with the pieces before them they may
    be a numbered word.
    """
    kinds = _KIND_OF
    leading = start
    while leading < end and kinds[key[leading]] == _LETTER:
        leading += 1
    if leading == start and _is_number(key, start, end):
        out[length] = _DATE if _is_date(key, start, end) else _INT
        return length + 1
    if _is_version(key, start, end):
        return _as_it_is(key, start, end, out, length)
    replacement = _HEX if _is_long_hex(key, start, end) else _ID
    if _is_numbered(key, start, leading, end) and (not alone or (replacement == _ID and leading - start > 2)):
        length = _as_it_is(key, start, leading, out, length)
        replacement = replacement if replacement == _HEX else _INT
    out[length] = replacement
    return length + 1


def _is_numbered(key: bytes, start: int, leading: int, end: int) -> bool:
    """Whether the letters up to `leading` are followed only by digits, at most 20."""
    return leading > start and end - leading <= 20 and _is_number(key, leading, end)


def _is_number(key: bytes, at: int, end: int) -> bool:
    kinds = _KIND_OF
    while at < end:
        if kinds[key[at]] != _DIGIT:
            return False
        at += 1
    return True


def _is_version(key: bytes, start: int, end: int) -> bool:
    """Whether this is a version such as v1, which counts as a word."""
    return (
        (key[start] == 118 or key[start] == 86) and 2 <= end - start <= 4 and _is_number(key, start + 1, end)
    )


def _is_long_hex(key: bytes, at: int, end: int) -> bool:
    """Whether these are at least eight hexadecimal digits in one case."""
    hexes = _HEX_OF
    if end - at < 8:
        return False
    cases = 0
    while at < end:
        case = hexes[key[at]]
        if not case:
            return False
        cases |= case
        at += 1
    return cases < 6  # not both


def _is_uuid(key: bytes, start: int) -> bool:
    """Whether the _UUID_LENGTH bytes from `start` are a UUID."""
    hexes = _HEX_OF
    for at in range(_UUID_LENGTH):
        byte = key[start + at]
        if at in (8, 13, 18, 23):
            if byte != 45:
                return False
        elif not hexes[byte]:
            return False
    return True


def _is_date(key: bytes, at: int, end: int) -> bool:
    """Whether this is year, month and day, with `-`, `/`, `.`, `_` or nothing between them."""
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
    """The replacement of a part of digits and joints that is a date, an address or a number; 0 if it is
    neither."""
    kinds = _KIND_OF
    if _is_date(key, start, end):
        return _DATE
    dots = minus = others = run = longest = 0
    empty = False
    at = start
    while at < end:
        byte = key[at]
        if kinds[byte] == _DIGIT:
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
    """Write the replacements of pieces between joints. Return -1 if they could be read in several ways.

    If each piece is a word, a number, a date or long hexadecimal, each is replaced on its own. Two pieces may
    also be a word and an id.
    """
    kinds = _KIND_OF
    pieces = ids = joints = 0
    begun = length
    at = start
    while at < end:
        if kinds[key[at]] == _JOINT:
            out[length] = key[at]
            length += 1
            joints += 1
            at += 1
            continue
        stop = at
        digits = 0
        while stop < end and kinds[key[stop]] != _JOINT:
            digits += kinds[key[stop]] == _DIGIT
            stop += 1
        pieces += 1
        if digits == 0:
            length = _as_it_is(key, at, stop, out, length)
        elif _is_version(key, at, stop):
            return _as_it_is(key, start, end, out, begun)  # v10.0.0.1
        else:
            if _is_long_hex(key, at, stop):
                if stop < end and kinds[key[at]] == _LETTER:
                    return -1  # abcdef10.0.0.1
            elif not _is_number(key, at, stop):
                ids += 1
            length = _piece(key, at, stop, out, length, False)
        at = stop
    if ids == 0:
        # Without the words at its ends, a longer part may be a UUID.
        return length if end - start <= _UUID_LENGTH else -1
    if pieces == 2 and joints == 1 and ids == 1:
        return length if _has_letters_only_piece(key, start, end) else -1
    return -1


def _has_letters_only_piece(key: bytes, start: int, end: int) -> bool:
    """Whether one of the two pieces consists only of letters."""
    kinds = _KIND_OF
    at = start
    while kinds[key[at]] == _LETTER:
        at += 1
    if kinds[key[at]] == _JOINT:
        return True
    at = end - 1
    while kinds[key[at]] == _LETTER:
        at -= 1
    return kinds[key[at]] == _JOINT
