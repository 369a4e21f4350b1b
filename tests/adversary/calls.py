"""Calls of each command, and the words that an attacker puts in place of its arguments.

Rule: names come from the code under search, so that a new command there is searched too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from keyfence.commands.table import COMMANDS
from keyfence.session.conversation.routing import SHAREABLE, has_one_reply

Argv = list[bytes]

# A key of each type, by the categories of the commands that are for it.
KEY_OF = {
    "string": b"s",
    "bitmap": b"s",
    "hash": b"h",
    "list": b"l",
    "set": b"t",
    "sortedset": b"z",
    "stream": b"x",
    "geo": b"g",
    "hyperloglog": b"p",
}
PLANTED: list[Argv] = [
    line.split()
    for line in b"""SET s 1
        SET r v
        HSET h f 1
        RPUSH l 1 2 3
        SADD t 1 2 3
        ZADD z 1 a 2 b
        XADD x 1-1 f v
        XGROUP CREATE x group 0
        GEOADD g 1 1 a 2 2 b
        PFADD p 1 2""".splitlines()
]
# Redis 7 has function libraries. This one returns its caller's text as an error.
LIBRARY = (
    b"#!lua name=shapes\nredis.register_function{function_name='shape', "
    b"callback=function(keys, args) error(args[1]) end}\n"
    b"redis.register_function{function_name='table', "
    b"callback=function(keys, args) return {err=args[1]} end}"
)
# Arguments of commands for which a key and some ones are not enough.
TEMPLATES: list[Argv] = [
    [word.replace(b"_", b" ") for word in line.split()]
    for line in b"""BITFIELD s GET u8 0
        BITFIELD_RO s GET u8 0
        BITOP AND d s r
        COPY s d REPLACE
        DUMP s
        EVAL return_redis.call('get',KEYS[1]) 1 s
        EVAL_RO return_redis.call('get',KEYS[1]) 1 s
        EVAL error(ARGV[1]) 0 x
        EVAL error({err=ARGV[1]}) 0 x
        EVAL return_{err=ARGV[1]} 0 x
        EVAL return_{ok=ARGV[1]} 0 x
        EVAL return_redis.error_reply(ARGV[1]) 0 x
        EVAL return_redis.status_reply(ARGV[1]) 0 x
        EVAL return_redis.call(ARGV[1]) 0 x
        EVAL return_redis.pcall(ARGV[1],ARGV[2]) 0 x y
        EVAL return_redis.call('set','s',ARGV[1],ARGV[1]) 0 x
        EVAL return_{{{err=ARGV[1]},ARGV[1]},{ok=ARGV[1]}} 0 x
        EVAL redis.setresp(3)return_{big_number=ARGV[1]} 0 1
        EVAL redis.setresp(3)return_{verbatim_string={format=ARGV[1],string=ARGV[2]}} 0 txt x
        EVAL redis.setresp(3)return_{map={a=ARGV[1]},double=1} 0 x
        EVAL return_assert(loadstring(ARGV[1]))() 0 return_1
        EVAL return_cjson.decode(ARGV[1]) 0 [1]
        EVAL return_struct.pack(ARGV[1],1) 0 b
        EVALSHA 0123456789012345678901234567890123456789 1 s
        FCALL shape 0 x
        FCALL table 0 x
        FCALL_RO shape 0 x
        GEOADD g 1 1 c
        GEODIST g a b km
        GEOHASH g a
        GEOPOS g a
        GEORADIUS g 1 1 100 km WITHDIST
        GEORADIUS_RO g 1 1 100 km
        GEORADIUSBYMEMBER g a 100 km
        GEORADIUSBYMEMBER_RO g a 100 km
        GEOSEARCH g FROMMEMBER a BYRADIUS 100 km ASC
        GEOSEARCHSTORE d g FROMLONLAT 1 1 BYBOX 100 100 km
        GETEX s EX 100
        HEXPIRE h 100 FIELDS 1 f
        HPERSIST h FIELDS 1 f
        HTTL h FIELDS 1 f
        HRANDFIELD h 1 WITHVALUES
        HSCAN h 0 MATCH * COUNT 10
        LCS s r IDX WITHMATCHLEN
        LINSERT l BEFORE 1 x
        LMOVE l d LEFT RIGHT
        LMPOP 1 l LEFT COUNT 1
        LPOS l 1 RANK 1
        MIGRATE h 1 s 0 1
        PUBSUB CHANNELS *
        RESTORE d 0 x REPLACE
        SCAN 0 MATCH * TYPE string
        SCRIPT EXISTS 0123456789012345678901234567890123456789
        SCRIPT LOAD return_1
        SET s v EX 100 GET
        SET s v IFDEQ 0123456789abcdef GET
        SINTERCARD 1 t LIMIT 1
        SMOVE t d 1
        SORT l BY w* GET # GET v* LIMIT 0 5 DESC ALPHA STORE d
        STRALGO LCS KEYS s r
        SSCAN t 0 MATCH * COUNT 10
        XADD x MAXLEN ~ 10 * f v
        XACK x group 1-1
        XAUTOCLAIM x group c 0 0
        XCLAIM x group c 0 1-1
        XGROUP CREATE x group2 $ MKSTREAM
        XGROUP CREATECONSUMER x group c
        XGROUP DELCONSUMER x group c
        XGROUP DESTROY x group
        XGROUP SETID x group 0
        XINFO CONSUMERS x group
        XPENDING x group - + 10 c
        XRANGE x - + COUNT 1
        XREVRANGE x + -
        XTRIM x MAXLEN ~ 10
        ZADD z XX CH 1 a
        ZDIFF 2 z g WITHSCORES
        ZDIFFSTORE d 2 z g
        ZINTER 2 z g WEIGHTS 1 2 AGGREGATE MIN
        ZINTERCARD 1 z
        ZINTERSTORE d 2 z g
        ZLEXCOUNT z - +
        ZMPOP 1 z MIN COUNT 1
        ZRANDMEMBER z 1 WITHSCORES
        ZRANGE z 0 1 REV WITHSCORES
        ZRANGEBYLEX z - + LIMIT 0 1
        ZRANGESTORE d z 0 1
        ZREMRANGEBYLEX z [x [y
        ZREVRANGEBYLEX z + -
        ZSCAN z 0 MATCH *
        ZUNION 2 z g WITHSCORES
        ZUNIONSTORE d 2 z g""".splitlines()
]

_FRAMES = [
    b"+z",
    b"-z",
    b":1",
    b"$1\r\nz",
    b"*1\r\n:1",
    b"*0",
    b"_",
    b"#t",
    b",1",
    b"%1\r\n:1\r\n:1",
    b">1\r\n:1",
]
_BREAKS = [b"\r\n" + frame for frame in _FRAMES]


def _escaped(text: bytes) -> bytes:
    return text.replace(b"\r", b"\\r").replace(b"\n", b"\\n")


# Words that break a line if a server puts them into it unescaped …
WORDS: list[bytes] = [
    b"",
    b"\r",
    b"\n",
    b"\r\n",
    b"x\r\n+z",
    b"x\\r\\n+z",
    b"\\x0d\\x0a+z",
    b"\\13\\10+z",
    b'"x\\r\\n+z"',
    b"'x\r\n+z'",
    b'"x\r\n+z',
    b"x\0\r\n+z",
    b"\0",
    b"\xff\xfe\r\n",
    b"\xc4\x8d\xc4\x8a",  # U+010D, U+010A: CR and LF for a reader that keeps only the low bytes
    *(one + b"\r\n" for one in _BREAKS),
    *(b"x" + _escaped(one) for one in _BREAKS),
    # … numbers and near-numbers …
    b"0",
    b"-1",
    b"9223372036854775807",
    b"9223372036854775808",
    b"1e400",
    b"nan",
    b"-inf",
    b"0x1p3",
    b"1 ",
    b"x" * 200 + b"\r\n+z\r\n",
    b"y" * 20_000 + b"\r\n+z\r\n",
    # … and scripts.
    *(b'#!lua "x' + _escaped(one) + b'"\nreturn 1' for one in _BREAKS),
    b'#!"x\\r\\n+z"\nreturn 1',
    b'#!lua flags="x\\r\\n+z"\nreturn 1',
    b'#!lua name="x\\r\\n+z"\nreturn 1',
    b'#!lua name=x "y\\r\\n+z"\nreturn 1',
    b"#!lua x\r\n+z\nreturn 1",
    b"error('x\\r\\n+z')",
    b"error({err='x\\r\\n+z'})",
    b"return redis.error_reply('x\\r\\n+z')",
    b"return {err='x\\r\\n+z'}",
    b"return {ok='x\\r\\n+z'}",
    b"return redis.call('x\\r\\n+z')",
    b"return redis.call('set', 's', '1', 'x\\r\\n+z')",
    b"x\r\n+z = = 1",
    b"return 'x\\r\\n+z' + 1",
    b"return _G['x\\r\\n+z']",
    b"_G['x\\r\\n+z'] = 1",
    b"redis.setresp(3); return {big_number='1\\r\\n+z'}",
    b"redis.setresp(3); return {verbatim_string={format='t\\r\\n', string='x'}}",
    b"redis.log(1, 'x\\r\\n+z'); return redis.sha1hex('x')",
]
OPTIONS = (
    b"STORE STOREDIST GET BY LIMIT ASC ALPHA COUNT MATCH TYPE EX PX EXAT KEEPTTL NX XX GT LT CH INCR "
    b"WITHSCORES WEIGHTS AGGREGATE SUM MAXLEN MINID MKSTREAM NOACK JUSTID IDLE FORCE REV BYSCORE BYLEX LEFT "
    b"RIGHT REPLACE DB WITHCOORD WITHHASH FULL HELP IDX FIELDS FNX IFEQ IFNE IFDEQ IFDNE"
).split()

# Commands that take memory quadratic in a value's length.
_SQUARE = (b"LCS", b"STRALGO")


def shareable_calls() -> list[Argv]:
    """Returns at least one call of each command that may use a shared connection."""
    calls = [call for call in TEMPLATES if name_of(call) in SHAREABLE]
    have = {name_of(call) for call in calls}
    return calls + [_plain_call(name) for name in sorted(SHAREABLE - have)]


def shares(call: Argv) -> bool:
    """Whether keyfence sends the call on a shared connection as one that surely has one reply."""
    name = name_of(call)
    return name not in SHAREABLE or has_one_reply(COMMANDS[name.encode()].command, call)


def name_of(call: Argv) -> str:
    two = b" ".join(call[:2])
    return (two if two in COMMANDS else call[0]).decode()


def _plain_call(name: str) -> Argv:
    known = COMMANDS[name.encode()].command
    words = name.encode().split()
    key = next((KEY_OF[category] for category in sorted(known.categories) if category in KEY_OF), b"s")
    count = max(abs(known.arity) - len(words), 1 if known.names_keys or known.arity < 0 else 0)
    return [*words, *[key, *[b"1"] * count][:count]]


def every_word_in_every_place(call: Argv) -> Iterator[Argv]:
    """Yields calls with each of WORDS in place of each argument, and after the last one."""
    for place in range(len(name_of(call).split()), len(call) + 1):
        for word in WORDS:
            if call[0] not in _SQUARE or len(word) < 1000:
                yield [*call[:place], word, *call[place + 1 :]]


def mutated(rng: random.Random, call: Argv) -> Argv:
    """Returns the call with arguments replaced, added, removed or swapped."""
    argv = list(call)
    first = len(name_of(call).split())
    for _ in range(rng.randrange(1, 5)):
        place = rng.randrange(first, len(argv) + 1)
        word = rng.choice([*WORDS, *OPTIONS]) if rng.random() < 0.9 else noise(rng)
        if call[0] in _SQUARE:
            word = word[:1000]
        argv[place : place + rng.randrange(2)] = [] if rng.random() < 0.1 else [word]
        if rng.random() < 0.1 and len(argv) > first + 1:
            one, other = rng.sample(range(first, len(argv)), 2)
            argv[one], argv[other] = argv[other], argv[one]
    return argv


def noise(rng: random.Random) -> bytes:
    """Returns a few bytes, mostly line ends and quotes."""
    return bytes(rng.choice(b"\r\n\r\n\\rnx0\"'+-:$*%>~\0\xff 13") for _ in range(rng.randrange(12)))
