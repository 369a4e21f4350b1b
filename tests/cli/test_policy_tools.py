"""The commands that need only policy files: check, explain, test, diff."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfence.cli import policy_tools
from keyfence.policy.source.files import Unreadable
from tests.cli.test_main import SMALL, keyfence, process
from tests.policy.cases import POLICIES

POLICY = str(POLICIES / "cubesandbox.yaml")
NO_SECRETS = str(POLICIES / "general.yaml")
Write = Callable[[str, "str | bytes"], Path]


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def small(file: Write) -> Path:
    return file("small.yaml", SMALL)


# -- explain


def explained(*command: str, service: str = "CubeMaster") -> tuple[int, dict[str, object]]:
    code, out, err = keyfence("explain", "--policy", POLICY, "--service", service, "--json", "--", *command)
    assert err == ""
    answer = json.loads(out)
    assert isinstance(answer, dict)
    return code, answer


def test_an_allowed_command_as_json() -> None:
    code, answer = explained("HGETALL", "cube:v1:shared:sandbox:proxy:s1", service="CubeProxy")
    assert code == 0
    assert answer == answer | {
        "verdict": "allow",
        "rule": None,
        "entry": "sandbox-route",
        "position": None,
        "hint": None,
        "accesses": [
            {
                "position": 1,
                "key": "cube:v1:shared:sandbox:proxy:s1",
                "access": "read",
                "entry": "sandbox-route",
                "kind": "entry",
            }
        ],
        "violations": [],
    }


def test_a_violation_as_json() -> None:
    code, answer = explained("HSET", "cube:v1:shared:sandbox:proxy:s1", "HostIP", "x", service="CubeProxy")
    assert code == 1
    assert answer == answer | {
        "verdict": "violation",
        "rule": "scope.write",
        "entry": "sandbox-route",
        "position": 1,
        "hint": "its writers: CubeMaster",
        "severity": "must",
    }
    violations = answer["violations"]
    assert isinstance(violations, list)
    assert [one["rule"] for one in violations] == ["scope.write", "value.invalid"]


@pytest.mark.parametrize(
    ("command", "accesses"),
    [
        (("GET", "cube:v1:master:lock:a:b"), ["read"]),
        (("SET", "cube:v1:master:lock:a:b", "x"), ["write"]),
        (("SET", "cube:v1:master:lock:a:b", "x", "GET"), ["both"]),
        (("EXISTS", "cube:v1:master:lock:a:b"), ["none"]),
        (("COPY", "a", "b"), ["read", "write"]),
        (("PING",), []),
    ],
)
def test_an_access_is_read_write_both_or_none(command: tuple[str, ...], accesses: list[str]) -> None:
    _, answer = explained(*command)
    found = answer["accesses"]
    assert isinstance(found, list)
    assert [one["access"] for one in found] == accesses


def test_an_allowed_command_as_text() -> None:
    code, out, err = keyfence(
        "explain",
        "--policy",
        POLICY,
        "--service",
        "CubeProxy",
        "--",
        "HGETALL",
        "cube:v1:shared:sandbox:proxy:s1",
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].strip() == "accesses"
    assert re.findall(r"[\w:-]+", lines[2]) == ["position", "key", "access", "entry"]
    assert re.findall(r"[\w:-]+", lines[4]) == [
        "1",
        "cube:v1:shared:sandbox:proxy:s1",
        "read",
        "sandbox-route",
    ]
    assert lines[-1] == "allow"


def test_a_violation_as_text() -> None:
    code, out, _ = keyfence(
        "explain", "--policy", POLICY, "--service", "CubeMaster", "--",
        "HSET", "cube:v1:master:node:metric:n1", "cpu_util", "1", "mvm_num", "x",
    )  # fmt: skip
    assert code == 1
    first, second = [line for line in out.splitlines() if line.startswith("violation")]
    assert first.startswith("violation field.unknown (should: never refused) at argument 2: ")
    assert second.startswith("violation value.invalid at argument 5: the field mvm_num of ")


def test_a_command_without_keys_as_text() -> None:
    assert keyfence("explain", "--policy", POLICY, "--service", "CubeMaster", "--", "PING") == (
        0,
        "accesses: none\nallow\n",
        "",
    )


@pytest.mark.parametrize("dashes", [("--",), ()])
def test_arguments_may_begin_with_dashes(dashes: tuple[str, ...]) -> None:
    command = ("SET", "cube:v1:master:lock:a:b", "--json", "EX", "-5")
    code, out, err = keyfence("explain", "--policy", POLICY, "--service", "CubeMaster", *dashes, *command)
    assert (code, err) == (0, "")
    assert "cube:v1:master:lock:a:b" in out


def test_arguments_may_be_invalid_utf_8() -> None:
    common = ("explain", "--policy", NO_SECRETS, "--service", "app")
    code, out, err = process(*common, "--json", "--", "GET", b"a\xff\n")
    assert (code, err) == (1, "")
    answer = json.loads(out)
    assert answer["accesses"][0]["key"].encode("utf-8", "surrogateescape") in (b"a\xff\n", b"a\\xff\\n")
    code, out, err = process(*common, "--", "GET", b"a\xff\n\x1b[31m")
    assert (code, err) == (1, "")
    assert r"a\xff\n\x1b[31m" in out
    assert "\x1b" not in out


def test_markup_in_a_key_is_shown_as_text() -> None:
    _, out, _ = keyfence("explain", "--policy", NO_SECRETS, "--service", "app", "--", "GET", "[bold]x[/]")
    assert out.count("[bold]x[/]") == 2


def test_the_value_of_a_secret_placeholder_is_not_shown() -> None:
    for command in (("GET", "cube:v1:api:session:hunter22"), ("GET", "cube:v1:api:session:hunter22:x")):
        for how in ((), ("--json",)):
            code, out, _ = keyfence(
                "explain", "--policy", POLICY, "--service", "CubeProxy", *how, "--", *command
            )
            assert code == 1
            assert "hunter22" not in out


def test_explain_suggests_a_service_for_an_unknown_one() -> None:
    assert keyfence("explain", "--policy", POLICY, "--service", "CubeMastr", "--", "GET", "k") == (
        2,
        "",
        "keyfence: --service: 'CubeMastr' is not a service of the policy; did you mean CubeMaster?\n",
    )


def test_explain_of_a_missing_policy_is_an_error(tmp_path: Path) -> None:
    code, out, err = keyfence(
        "explain", "--policy", tmp_path / "none", "--service", "a", "--json", "--", "GET", "k"
    )
    assert (code, out) == (2, "")
    assert err == f"{tmp_path}/none:1:1: error: cannot be read: No such file or directory\n"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
        | st.sampled_from(["GET", "EVAL", "SORT", "XREADGROUP", "-1", "--", "--json", "STREAMS", "cube:v1:"]),
        min_size=1,
        max_size=6,
    )
)
def test_any_command_can_be_explained(command: list[str]) -> None:
    code, answer = explained(*command)
    assert code == (0 if answer["verdict"] == "allow" else 1)


def test_explain_shows_what_would_let_a_command_pass() -> None:
    code, out, _ = keyfence(
        "explain", "--policy", POLICY, "--service", "cube-proxy-sidecar", "--",
        "SET", "cube:v1:shared:sandbox:lifecycle:state:s1", "paused",
    )  # fmt: skip
    assert code == 1
    assert out.splitlines()[-2:] == [
        "to let it pass:",
        "  ttl.required: set the time to live in the same command, 1m for example: "
        "SET cube:v1:shared:sandbox:lifecycle:state:s1 paused EX 60",
    ]


def test_a_sequence_is_explained_from_standard_input() -> None:
    lines = "SET cube:v1:master:lock:a:b x EX 30\n@CubeProxy\nGET cube:v1:master:lock:a:b\n"
    common = ("explain", "--policy", POLICY, "--service", "CubeMaster", "--file", "-")
    code, out, err = keyfence(*common, stdin=lines)
    assert (code, err) == (1, "")
    assert out.splitlines()[:3] == [
        "line 1: CubeMaster SET: allow; cube:v1:master:lock:a:b: 30s",
        "line 3: CubeProxy GET: violation",
        "  scope.read at argument 1: CubeProxy may not GET cube:v1:master:lock:a:b",
    ]
    code, out, _ = keyfence(*common, "--json", stdin=lines)
    assert [one["verdict"] for one in json.loads(out)] == ["allow", "violation"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ((), "", "give either a command or --file"),
        (("--file", "none"), "", "none: cannot be read: No such file or directory"),
        (("--file", "-"), "@nobody\nPING\n", "-: line 2: 'nobody' is not a service of the policy"),
        (
            ("--file", "-", "--service", "nobody"),
            "PING\n",
            "--service: 'nobody' is not a service of the policy",
        ),
        (("--file", "-"), "PING 'x\n", "-: line 1: no closing quotation"),
    ],
)
def test_an_unusable_sequence_is_an_error(arguments: tuple[str, ...], stdin: str, message: str) -> None:
    common = ("explain", "--policy", POLICY, "--service", "CubeMaster")
    code, out, err = keyfence(*common, *arguments, stdin=stdin)
    assert (code, out) == (2, "")
    assert err.startswith(f"keyfence: {message}")


def test_a_sequence_may_begin_with_a_byte_order_mark() -> None:
    common = ("explain", "--policy", POLICY, "--service", "CubeMaster", "--file", "-")
    code, out, _ = keyfence(*common, stdin="\ufeffPING\n")
    assert (code, out) == (0, "line 1: CubeMaster PING: allow\n")


def test_a_closed_standard_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(Unreadable, match="standard input is closed; name a file"):
        policy_tools._read_input()


def test_a_sequence_that_is_too_large_is_an_error_and_not_cut() -> None:
    common = ("explain", "--policy", POLICY, "--service", "CubeMaster", "--file", "-")
    code, out, err = keyfence(*common, stdin="PING\n" + "#" * 4 * 1024 * 1024)
    assert (code, out) == (2, "")
    assert err.startswith("keyfence: -: cannot be read: it has more than 4194304 bytes")


# -- test


TESTED = """policy: p
services: [one]
keys: {k: {key: "a:b", writers: one}}
"""


def test_policy_tests_pass_with_exit_code_0(file: Write) -> None:
    file("p.yaml", TESTED)
    tests = file("p.test.yaml", 'policy: p.yaml\ntests: [{service: one, command: "GET a:b"}]\n')
    code, out, err = keyfence("test", tests)
    assert (code, err) == (0, "")
    assert out.startswith(f"{tests}: 1 passed, 0 failed\n{tests.parent}/p.yaml: ")
    assert out.endswith(" % exercised (--coverage lists the rest)\n")
    assert len(out.splitlines()) == 2
    code, out, _ = keyfence("test", tests, "--coverage")
    assert code == 0
    assert "never: k: no violation" in out
    code, _, err = keyfence("test", tests.parent, "--min-coverage", "90")
    assert code == 1
    assert "less than 90 %" in err


def test_policy_tests_that_fail_have_exit_code_1(file: Write) -> None:
    file("p.yaml", TESTED)
    tests = file("p.test.yaml", 'policy: p.yaml\ntests:\n  - {service: one, command: "GET a:x<"}\n')
    message = "GET a:x<: expected allow, got violation key.unregistered"
    code, out, _ = keyfence("test", tests)
    assert code == 1
    assert out.startswith(f"{tests}:3:5: error: {message}")
    code, out, _ = keyfence("test", tests, "--format", "github")
    assert code == 1
    assert out.startswith(f"::error file={tests},line=3,col=5::{message}")
    code, out, _ = keyfence("test", tests, "--format", "json")
    answer = json.loads(out)
    assert (code, answer["tests"], answer["failed"], answer["files"][0]["failures"][0]["line"]) == (
        1,
        1,
        1,
        3,
    )
    code, out, _ = keyfence("test", tests, "--format", "junit")
    suites = ElementTree.fromstring(out)
    assert code == 1
    assert [suite.get("failures") for suite in suites] == ["1"]
    assert message in str(suites[0][0][0].get("message"))


def test_unusable_policy_tests_have_exit_code_2(file: Write) -> None:
    tests = file("p.test.yaml", "policy: none.yaml\ntests: [{service: one, command: PING}]\n")
    code, out, _ = keyfence("test", tests)
    assert code == 2
    assert "none.yaml" in out
    assert keyfence("test", tests.parent / "none").code == 2


# -- diff


def test_a_difference_of_two_policies_has_exit_code_1(file: Write) -> None:
    old, new = file("old.yaml", TESTED), file("new.yaml", TESTED.replace("writers", "readers"))
    code, out, err = keyfence("diff", old, new)
    assert (code, err) == (1, "")
    assert out == "one loses write on k (a:b), for example a:b\n"
    code, out, _ = keyfence("diff", old, new, "--format", "json")
    assert code == 1
    (change,) = json.loads(out)
    assert (change["section"], change["services"], change["example"]) == ("rights", ["one"], "a:b")
    assert keyfence("diff", old, old) == (0, "", "")
    assert keyfence("diff", old, "none").code == 2


def test_diff_replays_a_log(file: Write) -> None:
    old, new = file("old.yaml", TESTED), file("new.yaml", TESTED.replace("writers", "readers"))
    answer = {"service": "one", "command": "SET", "argv": ["SET", "a:b", "?"], "count": 7}
    answer |= {"accesses": [{"position": 1, "key": "a:b", "needs": 2}]}
    log = file("commands.log", json.dumps(answer) + "\n")
    code, out, err = keyfence("diff", old, new, "--replay", log)
    assert (code, err) == (1, "")
    assert out == ("one breaks scope.write with SET, 7 times: a:b\n7 commands replayed, 0 undecided\n")
    code, out, _ = keyfence("diff", old, new, "--replay", log, "--format", "json")
    assert (code, json.loads(out)["rows"][0]["count"]) == (1, 7)
    assert keyfence("diff", old, old, "--replay", log).code == 0
    cut = file("cut.log", json.dumps(answer | {"count": 7000, "cut": True}) + "\n")
    assert keyfence("diff", old, new, "--replay", cut).out.endswith(
        "7,000 commands replayed, 7,000 undecided\n"
    )
    broken = file("broken.log", "x\n")
    code, _, err = keyfence("diff", old, new, "--replay", broken)
    assert code == 2
    assert "line 1: " in err
    assert keyfence("diff", old, new, "--replay", "none").code == 2


# -- check


def test_a_policy_without_faults(small: Path) -> None:
    code, out, err = keyfence("check", small)
    assert (code, err) == (0, "")
    assert f"{small}: 0 errors, 1 warning; policy small, 2 services, 1 scope, 0 entries" in out


def test_all_errors_are_listed_in_the_order_of_the_file(file: Write) -> None:
    policy = file(
        "p.yaml",
        """policy: p
services: [one, one]
should: [field.unknow]
placeholders: {id: "[a"}
keys:
  k: {key: "a:<id>", typ: hash}
""",
    )
    code, out, _ = keyfence("check", policy)
    assert code == 1
    places = [
        place for line in out.splitlines() if (place := re.match(rf"{policy}:(\d+:\d+): error: ", line))
    ]
    assert [place[1] for place in places] == ["2:17", "3:10", "4:20", "6:22"]
    assert out.splitlines()[-1] == f"{policy}: 4 errors"


def test_a_fault_shows_its_line_and_a_caret(file: Write) -> None:
    policy = file("p.yaml", "policy: p\nservices: [one]\nkeys:\n  k: {key: 'a', ttl: {at: hsh}}\n")
    assert keyfence("check", policy).out == (
        f"{policy}:4:27: error: 'hsh' is not admitted here; expected write or refresh\n"
        " 4 |   k: {key: 'a', ttl: {at: hsh}}\n"
        "   |                           ^^^\n"
        f"{policy}: 1 error\n"
    )


def test_faults_as_json(file: Write) -> None:
    policy = file("p.yaml", "policy: p\nservices: [one]\nscopes: {s: {prefix: 'a:', readers: one}}\n")
    code, out, _ = keyfence("check", "--format", "json", policy)
    assert code == 0
    assert json.loads(out) == [
        {
            "file": str(policy),
            "line": 3,
            "column": 10,
            "end_column": 11,
            "level": "warning",
            "code": "unwritten-scope",
            "message": "no service may write to the scope s, for example 'a:x'",
            "example": "a:x",
        }
    ]


def test_faults_as_workflow_commands(file: Write) -> None:
    policy = file("a,b.yaml", "policy: p\nservices: [one]\nshould: ['50%']\n")
    code, out, _ = keyfence("check", "--format", "github", policy)
    assert code == 1
    name = str(policy).replace(",", "%2C")
    assert out == f"::error file={name},line=3,col=10::'50%25' is not a rule\n"
    policy.write_text(SMALL)
    code, out, _ = keyfence("check", "--format", "github", policy)
    assert out.startswith(f"::warning file={name},line=4,col=17,title=idle-service::the service two ")


def test_strict_fails_on_warnings(file: Write) -> None:
    policy = file("p.yaml", SMALL)
    assert keyfence("check", policy).code == 0
    assert keyfence("check", "--strict", policy).code == 1
    policy.write_text(SMALL.replace("two]", "two]  # keyfence: ignore idle-service it comes in May"))
    code, out, _ = keyfence("check", "--strict", policy)
    assert (code, "0 errors, 0 warnings (1 ignored)" in out) == (0, True)


def test_warnings_follow_the_errors(file: Write) -> None:
    policy = file(
        "p.yaml",
        """policy: p
services: [one, idle]
placeholders: {a: "[a-z]+", b: "[a-y]+"}
scopes: {s: {prefix: "x:", writers: [one]}}
keys:
  first: {key: "x:<a>"}
  second: {key: "x:<b>"}
""",
    )
    code, out, _ = keyfence("check", policy)
    assert code == 1
    lines = out.splitlines()
    answer = [line for line in lines if line.startswith(str(policy))]
    assert [line.split(": ")[1] for line in answer[:3]] == ["error", "warning", "warning"]
    assert answer[3].startswith(f"{policy}: 1 error, 2 warnings")
    assert lines[-2:] == [
        "  first   SCAN 0 MATCH x:*  (also finds second)",
        "  second  SCAN 0 MATCH x:*  (also finds first)",
    ]


def test_warnings_alone_do_not_fail(file: Write) -> None:
    policy = file("p.yaml", SMALL)
    code, out, _ = keyfence("check", policy)
    assert code == 0
    assert (
        f"{policy}:4:17: warning: the service two has no rights on any key or channel [idle-service]" in out
    )


PLAIN = 'policy: p\nservices: [one]\nscopes: {s: {prefix: "a:", writers: [one]}}\n'


def test_a_configuration_is_checked_together_with_its_policy(file: Write) -> None:
    policy = file("p.yaml", PLAIN)
    config = file("keyfence.yaml", "policy: p.yaml\nlisteners: [{listen: ':0', service: one}]\n")
    code, out, err = keyfence("check", config)
    assert (code, err) == (0, "")
    assert out.startswith(f"{config}: 0 errors\n{policy}: 0 errors, 0 warnings; policy p, 1 service")
    config.write_text("policy: p.yaml\nlisteners: [{listen: ':0', service: on}]\n")
    policy.write_text(PLAIN + "should: [nonsense]\n")
    code, out, _ = keyfence("check", config)
    assert code == 1
    assert f"{policy}:4:10: error: 'nonsense' is not a rule" in out
    assert out.endswith(f"{config}: 0 errors\n{policy}: 1 error\n")
    policy.write_text(PLAIN)
    code, out, _ = keyfence("check", config)
    assert code == 1
    assert f"{config}:2:37: error: 'on' is not a service of the policy; did you mean one?" in out


def test_a_configuration_is_checked_without_the_policy_that_a_server_has(file: Write) -> None:
    text = 'policy: {url: "https://policies.example/p.yaml"}\nlisteners: [{listen: ":0", service: one}]\n'
    config = file("keyfence.yaml", text)
    code, out, err = keyfence("check", config)
    unchecked = "the policy of https://policies.example/p.yaml is not checked: no copy of it is here"
    assert (code, out, err) == (0, f"{config}: 0 errors; {unchecked}\n", "")
    config.write_text(text + "listners: []\n")
    code, out, _ = keyfence("check", config)
    assert code == 1
    assert f"{config}:3:1: error: unknown key 'listners'" in out


def test_a_setting_that_works_against_the_policy_is_a_warning(file: Write) -> None:
    file("p.yaml", PLAIN + "cluster: true\n")
    text = "policy: p.yaml\nupstream: {cluster: [h:6379], expose: single}\nsplit: {one: MGET}\n"
    config = file("keyfence.yaml", text)
    assert keyfence("check", "--strict", config)[0] == 0
    config.write_text(text + "modes: [{mode: enforce}]\n")
    code, out, _ = keyfence("check", config)
    assert (code, out.count("error: ")) == (0, 0)
    assert f"{config}:3:8: warning: commands of one may be sent in parts" in out
    assert f"{config}: 0 errors, 1 warning\n" in out
    assert keyfence("check", "--strict", config)[0] == 1


def test_rights_that_are_enforced_before_session_opaque_are_a_warning(file: Write) -> None:
    file("p.yaml", PLAIN)
    config = file("keyfence.yaml", "policy: p.yaml\nmodes: [{rule: scope.read, mode: enforce}]\n")
    code, out, _ = keyfence("check", config)
    assert (code, out.count("[unread-sessions]")) == (0, 1)
    config.write_text(
        "policy: p.yaml\nmodes: [{rule: session.opaque, mode: enforce}, {rule: scope.read, mode: enforce}]\n"
    )
    assert keyfence("check", "--strict", config)[0] == 0


CONFIGURATION = "policy: p.yaml\nmodes: [{mode: enforce}]\n"
A_CONFIGURATION = "this is a configuration, which --config names; expected a policy"
A_POLICY = "this is a policy, which --policy names; expected a configuration"


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        (
            ("explain", "--service", "one", "--policy", "f", "--", "PING"),
            CONFIGURATION,
            A_CONFIGURATION,
        ),
        (
            ("diff", "f", "f"),
            CONFIGURATION,
            A_CONFIGURATION,
        ),
        (("test", "f"), PLAIN, "this is a policy, which --policy names; expected a test file"),
        (("run", "--config", "f"), PLAIN, A_POLICY),
        (
            ("modes", "--config", "f"),
            PLAIN,
            A_POLICY,
        ),
        (
            ("waivers", "--waivers", "f"),
            PLAIN,
            "this is a policy, which --policy names; expected a waivers file",
        ),
        (
            ("check", "f"),
            "policy: p\ntests: []\n",
            "this is a test file, which 'keyfence test' runs; expected a policy",
        ),
        (("check", "f"), "waivers: []\n", "this is a waivers file, which --waivers names; expected a policy"),
    ],
)
def test_a_file_of_another_kind_is_named_in_one_error(
    arguments: tuple[str, ...], text: str, message: str, file: Write
) -> None:
    path = file("f", text)
    code, out, err = keyfence(*(str(path) if one == "f" else one for one in arguments))
    assert code in (1, 2)
    assert [line for line in (out + err).splitlines() if ": error: " in line] == [
        f"{path}:1:1: error: {message}"
    ]


@pytest.mark.parametrize("name", ["", "none.yaml"])
def test_a_folder_or_a_missing_file_is_a_failure(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    code, out, err = keyfence("check", path)
    assert (code, err) == (1, "")
    assert re.fullmatch(rf"{path}:1:1: error: .+\n{path}: 1 error\n", out)


def test_each_of_several_files_has_its_summary(file: Write, small: Path) -> None:
    broken = file("broken.yaml", "policy: {\n")
    code, out, _ = keyfence("check", broken, small)
    assert code == 1
    assert re.search(rf"^{broken}: 1 error$", out, re.MULTILINE)
    assert re.search(rf"^{small}: 0 errors, ", out, re.MULTILINE)
