"""A policy is loaded only as it was signed, and never an older one than was in force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keyfence.config.settings import Settings
from keyfence.fleet.manifest import CANDIDATE_FORMAT
from keyfence.fleet.signed import Floor, floor_of, read_floor, replay_fault, signature_path, write_floor
from keyfence.policy.diagnostics import FileError
from keyfence.process.serving.reload import Origin, read_once
from tests.fleet.publishing import Publisher

POLICY = """policy: shop
claims: ["a:"]
services: [one]
scopes: {s: {prefix: "a:", writers: [one]}}
"""


class Signing:
    """A configuration that takes the policy `shop.yaml` of one publisher."""

    def __init__(self, folder: Path) -> None:
        self.publisher = Publisher()
        self.policy = folder / "shop.yaml"
        self.signature = folder / "shop.yaml.sig"
        self.config = folder / "keyfence.yaml"
        self.configure("shop.yaml")

    def configure(self, path: str) -> None:
        self.config.write_text(f"policy: {{path: {path}, name: shop, trust: '{self.publisher.key}'}}\n")

    def load(self, floor: Floor | None = None) -> Settings:
        return read_once(Origin(str(self.config)).above(floor).load)[0][0]

    def fault(self, floor: Floor | None = None) -> str:
        with pytest.raises(FileError) as caught:
            self.load(floor)
        (fault,) = caught.value.diagnostics
        return str(fault)


@pytest.fixture
def signing(tmp_path: Path) -> Signing:
    return Signing(tmp_path)


def test_a_signed_policy_is_loaded_with_its_version(signing: Signing) -> None:
    signed = signing.publisher.write(signing.policy, 7, POLICY)
    assert signing.load().policy_signed == signed
    signing.policy.rename(signing.policy.with_name("other.yaml"))
    signing.signature.rename(signing.policy.with_name("other.yaml.sig"))
    signing.configure("other.yaml")
    assert signing.load().policy_signed == signed, "a policy of one file may be called otherwise"


def without_signature(one: Signing) -> None:
    one.signature.unlink()


def with_text_for_a_signature(one: Signing) -> None:
    one.signature.write_text("trust me")


def with_another_content(one: Signing) -> None:
    one.policy.write_text(POLICY + "# changed\n")


def with_a_faulty_content(one: Signing) -> None:
    one.policy.write_text(POLICY + "nonsense: 1\n")


def with_another_author(one: Signing) -> None:
    one.signature.write_bytes(one.signature.read_bytes().replace(b'"ada"', b'"eve"'))


def with_another_publisher(one: Signing) -> None:
    Publisher().write(one.policy, 8, POLICY)


def with_another_name(one: Signing) -> None:
    one.publisher.write(one.policy, 8, POLICY, name="staging")


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (without_signature, "shop.yaml.sig:1:1: error: unsigned: "),
        (with_text_for_a_signature, "shop.yaml.sig:1:1: error: unsigned: "),
        (with_another_content, "shop.yaml:1:1: error: changed content: "),
        (with_a_faulty_content, "shop.yaml:1:1: error: changed content: "),
        (with_another_author, "shop.yaml.sig:1:1: error: wrong signature: "),
        (with_another_publisher, "shop.yaml.sig:1:1: error: untrusted key: "),
        (with_another_name, "shop.yaml.sig:1:1: error: wrong name: "),
    ],
)
def test_what_is_not_as_it_was_signed_is_refused_by_its_kind(
    spoil: Callable[[Signing], None], kind: str, signing: Signing
) -> None:
    signing.publisher.write(signing.policy, 7, POLICY)
    spoil(signing)
    assert kind in signing.fault()


def test_an_older_version_and_another_one_of_the_same_sequence_are_replayed(signing: Signing) -> None:
    in_force = floor_of(signing.publisher.write(signing.policy, 7, POLICY))
    signing.load(in_force)
    signing.publisher.write(signing.policy, 6, POLICY)
    fault = signing.fault(in_force)
    assert "replayed: it has sequence 6, and 7 was in force" in fault
    assert "--sequence 8" in fault
    signing.publisher.write(signing.policy, 7, POLICY, message="another")
    assert "replayed: another version with sequence 7 was in force" in signing.fault(in_force)
    signing.publisher.write(signing.policy, 8, POLICY)
    signing.load(in_force)
    signing.publisher.write(signing.policy, 1, POLICY)
    signing.load(in_force._replace(name="staging"))


def test_a_folder_is_signed_as_a_whole_with_the_scripts_that_it_names(signing: Signing) -> None:
    folder = signing.config.parent / "policies"
    (folder / "lua").mkdir(parents=True)
    script = "scripts: {x: {source: lua/x.lua, keys: 1, writes: ['{KEYS}']}}\n"
    files = {
        "a.yaml": POLICY + script,
        "b.yaml": 'policy: b\nclaims: ["b:"]\nservices: [one]\n',
        "lua/x.lua": "return 1",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    assert signature_path(folder) == str(folder / "policy.sig")
    (folder / "policy.sig").write_bytes(signing.publisher.sign(1, files).text())
    signing.configure("policies")
    signing.load()
    (folder / "lua" / "x.lua").write_text("return 2")
    assert "changed content: lua/x.lua has another content than was signed" in signing.fault()
    (folder / "lua" / "x.lua").write_text("return 1")
    (folder / "b.yaml").unlink()
    assert "b.yaml was signed, and is missing" in signing.fault()
    (folder / "b.yaml").write_text(files["b.yaml"])
    (folder / "c.yaml").write_text('policy: c\nclaims: ["c:"]\nservices: [one]\n')
    assert "c.yaml was not signed" in signing.fault()


def test_a_candidate_that_has_gone_does_not_come_back() -> None:
    publisher = Publisher()
    trust = publisher.trust._replace(form=CANDIDATE_FORMAT)
    third = publisher.candidate(3, 7, POLICY).signed
    compared = floor_of(third)
    assert replay_fault(third, None, trust) == replay_fault(third, compared, trust) == ""
    assert replay_fault(publisher.candidate(4, 7, POLICY).signed, compared, trust) == ""
    another = publisher.candidate(3, 7, POLICY, message="another").signed
    for one, floor in (
        (publisher.candidate(2, 7, POLICY).signed, compared),
        (another, compared),
        (third, compared._replace(digest="")),  # it was withdrawn
    ):
        assert replay_fault(one, floor, trust).startswith("replayed: this is candidate ")


def test_the_last_sequence_comes_back_and_a_damaged_one_is_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "state" / "policy.yaml.sequence"
    assert read_floor(path) is None
    write_floor(path, Floor("shop", 7, "abc"))
    assert read_floor(path) == Floor("shop", 7, "abc")
    assert path.stat().st_mode & 0o777 == 0o600
    for text in ("", "{}", '{"name": "shop", "sequence": "x", "manifest": ""}'):
        path.write_text(text)
        with pytest.raises(FileError, match="remove it, if any signed policy may follow"):
            read_floor(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError, match="the last sequence cannot be read"):
        read_floor(path)
