from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from keyfence.commands.effects import effect_of
from keyfence.commands.table import ASKED_SERVERS, COMMANDS, KNOWN_CATEGORIES, KNOWN_COMMANDS, Row, lookup
from tests.servers import ServerBinary, all_server_binaries, running_redis

TOOL = Path(__file__).parents[2] / "tools" / "commands_table.py"
REPLIES = TOOL.parent / "command_replies"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("commands_table", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_up_to_date_with_the_recorded_replies(tool: ModuleType) -> None:
    assert tool.main(["--check"]) == 0


def test_a_stale_table_is_reported(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "TABLE", tmp_path / "table.json")
    assert tool.main(["--check"]) == 1
    assert tool.main([]) == 0
    assert tool.main(["--check"]) == 0


def merged(tool: ModuleType, directory: Path, **replies: list[object]) -> dict[str, dict[str, object]]:
    for server, reply in replies.items():
        (directory / f"{server}-1.0.json").write_text(json.dumps(reply))
    return {row["name"]: row for row in json.loads(tool.build(directory))["commands"]}


def test_differing_servers_give_the_stricter_union(tool: ModuleType, tmp_path: Path) -> None:
    index = {"type": "index", "spec": {"index": 1}}
    one = {"type": "range", "spec": {"lastkey": 0, "keystep": 1, "limit": 0}}
    many = {"type": "range", "spec": {"lastkey": -1, "keystep": 1, "limit": 0}}

    def spec(find: object, *flags: str) -> dict[str, object]:
        return {"flags": list(flags), "begin_search": index, "find_keys": find}

    ping = ["ping", 1, ["readonly", "fast"], 0, 0, 0, [], [], [], []]
    rows = merged(
        tool,
        tmp_path,
        old=[["x", 3, ["readonly", "admin"], 1, 1, 1, ["@read"], [], [spec(one, "access")], []], ping],
        new=[["x", -3, ["write"], 1, 1, 1, ["@write"], [], [spec(one, "update"), spec(many)], []], ping],
    )
    row = rows["X"]
    assert row["arity"] == -3
    assert row["flags"] == ["admin", "write"]  # not readonly: one of the two writes
    assert row["categories"] == ["read", "write"]
    assert [s["flags"] for s in row["keys"]] == [["access", "update"], []]  # type: ignore[attr-defined]
    assert rows["PING"]["flags"] == ["fast", "readonly"]


def test_a_flag_that_a_server_does_not_use_at_all_is_not_missing_there(
    tool: ModuleType, tmp_path: Path
) -> None:
    rows = merged(
        tool,
        tmp_path,
        old=[["x", 1, [], 0, 0, 0, []]],
        new=[["x", 1, ["allow_busy"], 0, 0, 0, [], [], [], []]],
    )
    assert rows["X"]["flags"] == ["allow_busy"]


def test_tips_on_a_cluster_are_those_of_the_newest_server_that_has_any(
    tool: ModuleType, tmp_path: Path
) -> None:
    def dbsize(*tips: str) -> list[object]:
        return [["dbsize", 1, [], 0, 0, 0, [], list(tips), [], []]]

    rows = merged(
        tool,
        tmp_path,
        a=dbsize("REQUEST_POLICY:ALL_SHARDS"),
        b=dbsize("request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"),
        c=dbsize(),
    )
    assert rows["DBSIZE"]["tips"] == {"request": "all_nodes", "response": "agg_sum"}


def test_a_key_range_without_specs_becomes_a_spec_with_all_access(tool: ModuleType, tmp_path: Path) -> None:
    rows = merged(
        tool, tmp_path, old=[["x", -2, ["write"], 2, -1, 2, []], ["y", 2, ["readonly"], 1, 1, 1, []]]
    )
    (spec,) = rows["X"]["keys"]  # type: ignore[misc]
    assert spec["flags"] == ["RW", "access", "update"]
    assert spec["begin_search"]["index"] == 2
    assert (spec["find_keys"]["lastkey"], spec["find_keys"]["keystep"]) == (-1, 2)
    assert rows["Y"]["keys"][0]["flags"] == ["RO", "access"]  # type: ignore[index]


def test_names_are_found_in_any_case() -> None:
    for name in (b"get", b"GET", b"gEt"):
        row = lookup([name, b"k"])
        assert row is not None
        assert row.command.name == "GET"


def test_a_container_is_looked_up_as_its_subcommand_or_itself() -> None:
    found = [lookup(argv) for argv in ([b"XGROUP", b"create"], [b"XGROUP", b"nope"], [b"xgroup"])]
    assert [row.command.name for row in found if row] == ["XGROUP CREATE", "XGROUP", "XGROUP"]


@pytest.mark.parametrize("name", [b"XGROUP CREATE", b"", b"GET\0", b"GET ", b"G" * 10_000])
def test_other_names_are_not_found(name: bytes) -> None:
    assert lookup([name, b"k"]) is None


def test_the_table_says_which_servers_have_a_command() -> None:
    assert COMMANDS[b"STRALGO"].command.servers == ("redis-6.2",)
    everywhere = ("redis-6.2", "redis-7.0", "redis-8.0", "redis-8.6", "valkey-8.1", "valkey-9.1")
    assert COMMANDS[b"GET"].command.servers == everywhere == tuple(sorted(ASKED_SERVERS))
    assert COMMANDS[b"ARSET"].command.servers == ("redis-8.10",)
    assert "redis-6.2" not in COMMANDS[b"LMPOP"].command.servers


def test_every_name_and_category_is_known() -> None:
    names, categories = KNOWN_COMMANDS, KNOWN_CATEGORIES
    assert {"GET", "XGROUP CREATE"} <= names
    assert {"@stream", "@dangerous"} <= categories


@pytest.mark.parametrize("name", ["GET", "SORT", "MIGRATE", "EVAL", "STRALGO", "DEBUG", "XGROUP CREATE"])
def test_names_keys_is_true_if_any_call_may_name_keys(name: str) -> None:
    assert COMMANDS[name.encode()].command.names_keys


@pytest.mark.parametrize("name", ["KEYS", "SCAN", "FLUSHALL", "DBSIZE", "PING", "SPUBLISH", "OBJECT HELP"])
def test_names_keys_is_false_for_commands_without_keys(name: str) -> None:
    assert not COMMANDS[name.encode()].command.names_keys


# The options of commands whose arguments keyfence parses itself: options that its parsers know, and options
# that do not affect the result. Before you add an option here, find out which of the two it is.
JUDGED_OPTIONS = {
    "BITOP": "AND ANDOR DIFF DIFF1 NOT ONE OR XOR",
    "BLMOVE": "LEFT RIGHT",
    "GEOSEARCHSTORE": "ANY ASC BYBOX BYPOLYGON BYRADIUS COUNT DESC FROMLONLAT FROMMEMBER FT KM M "
    "MI STOREDIST",
    "LMOVE": "LEFT RIGHT",
    "ZINTERSTORE": "AGGREGATE MAX MIN SUM WEIGHTS",
    "ZRANGESTORE": "BYLEX BYSCORE LIMIT REV",
    "ZUNIONSTORE": "AGGREGATE MAX MIN SUM WEIGHTS",
    "BITFIELD": "FAIL GET INCRBY OVERFLOW SAT SET WRAP",
    "COPY": "DB REPLACE",
    "DELEX": "IFDEQ IFDNE IFEQ IFNE",
    "EXPIRE": "GT LT NX XX",
    "EXPIREAT": "GT LT NX XX",
    "GEOADD": "CH NX XX",
    "GEORADIUS": "ANY ASC COUNT DESC FT KM M MI STORE STOREDIST WITHCOORD WITHDIST WITHHASH",
    "GEORADIUSBYMEMBER": "ANY ASC COUNT DESC FT KM M MI STORE STOREDIST WITHCOORD WITHDIST WITHHASH",
    "GETEX": "EX EXAT PERSIST PX PXAT",
    "HGETEX": "EX EXAT FIELDS PERSIST PX PXAT",
    "HSETEX": "EX EXAT FIELDS FNX FXX KEEPTTL NX PX PXAT XX",
    "MIGRATE": "AUTH AUTH2 COPY KEYS REPLACE",
    "MSETEX": "EX EXAT KEEPTTL NX PX PXAT XX",
    "PEXPIRE": "GT LT NX XX",
    "PEXPIREAT": "GT LT NX XX",
    "RESTORE": "ABSTTL FREQ IDLETIME REPLACE",
    "LINSERT": "AFTER BEFORE",
    "RESTORE-ASKING": "ABSTTL FREQ IDLETIME REPLACE",
    "SCAN": "COUNT MATCH TYPE",
    "SET": "EX EXAT GET IFDEQ IFDNE IFEQ IFNE KEEPTTL NX PX PXAT XX",
    "SORT": "ALPHA ASC BY DESC GET LIMIT STORE",
    "SORT_RO": "ALPHA ASC BY DESC GET LIMIT",
    "XADD": "* = ACKED DELREF IDMP IDMPAUTO KEEPREF LIMIT MAXLEN MINID NOMKSTREAM ~",
    "XAUTOCLAIM": "COUNT JUSTID",
    "XCLAIM": "FORCE IDLE JUSTID LASTID RETRYCOUNT TIME",
    "XGROUP CREATE": "$ ENTRIESREAD MKSTREAM",
    "XREAD": "BLOCK COUNT STREAMS",
    "XREADGROUP": "BLOCK CLAIM COUNT GROUP NOACK STREAMS",
    "ZADD": "CH GT INCR LT NX XX",
    "CLIENT TRACKING": "BCAST NOLOOP OFF ON OPTIN OPTOUT PREFIX REDIRECT",
    "CLUSTERSCAN": "COUNT MATCH SLOT TYPE",
}


def parsed() -> set[str]:
    """Commands in which the meaning of an argument depends on options before it."""
    return {row.command.name for row in COMMANDS.values() if has_function(row)}


def has_function(row: Row) -> bool:
    effects = [effect_of(row, role) for role in range(len(row.specs))]
    return bool(
        row.facts.found
        or row.facts.rights
        or row.facts.named
        or any(effect.ttl_of or effect.content_of for effect in effects)
    )


def test_every_option_of_a_parsed_command_is_listed() -> None:
    for path in sorted(REPLIES.glob("*.json")):
        options = json.loads(path.read_text()).get("options", {})
        for name in parsed() & options.keys():
            unknown = set(options[name]) - set(JUDGED_OPTIONS.get(name, "").split())
            assert not unknown, f"{path.name}: {name} has {unknown}: does that change what it touches?"


@pytest.mark.parametrize("binary", all_server_binaries(), ids=lambda binary: binary.id)
def test_the_reply_of_an_installed_server_adds_nothing_to_the_table(
    binary: ServerBinary, tool: ModuleType, tmp_path: Path
) -> None:
    """Debian may change replies within a version: 8.0.2-3+deb13u3 has more incomplete specs."""
    for path in REPLIES.iterdir():
        shutil.copy(path, tmp_path)
    with running_redis(binary) as server:
        name, said = tool.ask(f"unix:{server.socket_path}")
    if tool.server_name(Path(name)) not in ASKED_SERVERS:
        pytest.skip(f"{name} is not among the servers of the table: make commands FROM=… adds it")
    (tmp_path / f"{Path(name).stem}-installed.json").write_text(json.dumps(said))
    assert tool.build(tmp_path, tool.SENT_AT_CONNECT) == tool.TABLE.read_text()
