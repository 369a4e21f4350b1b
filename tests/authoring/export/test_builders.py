"""Generated builders make keys of their entries and nothing else, in every language.

Python's are compared with the policy; the others make the same calls and must answer the same.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest

from keyfence.authoring.export.builders import Builders, builders_of
from keyfence.authoring.export.languages import LANGUAGES
from keyfence.authoring.export.render import Named, names_in, render
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.loading.load import load_policy
from tests.policy.cases import POLICIES

from .samples import calls_of
from .toolchains import answers, formatted, needs

HARD = Path(__file__).with_name("hard.yaml")


@cache
def policy_of(name: str) -> CompiledPolicy:
    return load_policy(HARD if name == "hard" else POLICIES / f"{name}.yaml")


CONVENTIONS = ["cubesandbox", "cosky", "card-relay", "container-registry", "general"]


def chosen_calls(builders: Builders, language: str) -> list[tuple[Named, list[str]]]:
    """The same calls for every language."""
    rng = random.Random(builders.policy)
    return [(named, call) for named in names_in(builders, language) for call in calls_of(named.builder, rng)]


def expected(
    policy: CompiledPolicy, named: Named, texts: list[str], service: int | None = None
) -> bytes | None:
    """The key that a builder must return; None if it must refuse the values."""
    builder = named.builder
    values = iter(texts)
    key = "".join(part if isinstance(part, str) else next(values) for part in builder.parts).encode()
    target = policy.target(key)
    held = target is not None and (service is None or target.rights[service] & ~target.denied[service])
    own = target is not None and (target.kind, target.name) == ("entry", builder.entry) and held
    if not own or (builder.longest is not None and len(key) > builder.longest):
        return None
    # A key can be divided in other ways, in which each value has its form; the builder takes only this one.
    parameters = zip(builder.parameters, texts, strict=True)
    fits = all(_matches(one.form.node, text.encode()) for one, text in parameters)
    return key if fits else None


def _matches(node: object, value: bytes) -> bool:
    from keyfence.policy.patterns.matching import Simulation

    return Simulation(node).matches(value)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", [*CONVENTIONS, "hard"])
def test_builders_make_the_keys_of_their_entries_and_refuse_other_values(
    name: str, language: str, tmp_path: Path
) -> None:
    needs(language)
    policy = policy_of(name)
    builders = builders_of(policy)
    code = render(builders, language)
    formatted(language, code, tmp_path)
    calls = chosen_calls(builders, language)
    wanted = [expected(policy, named, texts) for named, texts in calls]
    made = answers(language, code, calls, tmp_path)
    wrong = [
        (named.function, texts, got, want)
        for (named, texts), got, want in zip(calls, made, wanted, strict=True)
        if got != want
    ]
    assert wrong == []
    if name != "general":
        assert sum(one is not None for one in wanted) >= len(builders.builders)
        assert wanted.count(None) > 0


@pytest.mark.parametrize(
    ("name", "service"),
    [(name, service) for name in [*CONVENTIONS, "hard"] for service in policy_of(name).services[:-1]],
)
def test_a_service_gets_builders_for_the_entries_that_it_uses(
    name: str, service: str, tmp_path: Path
) -> None:
    policy = policy_of(name)
    number = policy.number(service)
    builders = builders_of(policy, service)
    used = {
        one.name for one in policy.targets if one.kind == "entry" and one.rights[number] & ~one.denied[number]
    }
    left_out = {entry for entry, _ in builders.left_out}
    assert {one.entry for one in builders.builders} == used - left_out
    calls = chosen_calls(builders, "python")
    made = answers("python", render(builders, "python"), calls, tmp_path)
    assert made == [expected(policy, named, texts, number) for named, texts in calls]


def test_a_key_that_a_more_specific_entry_takes_is_refused(tmp_path: Path) -> None:
    builders = builders_of(policy_of("hard"))
    named = {one.builder.entry: one for one in names_in(builders, "python")}
    calls = [(named["type"], [text]) for text in ("x", "abc", "c")]
    made = answers("python", render(builders, "python"), calls, tmp_path)
    assert made == [b"h:type:x", b"h:type:abc", None]


def test_a_member_that_the_service_may_not_use_is_refused(tmp_path: Path) -> None:
    builders = builders_of(policy_of("hard"), "type")
    named = {one.builder.entry: one for one in names_in(builders, "python")}
    calls = [(named["single"], [stage]) for stage in ("dev", "o{d}d", "prod")]
    made = answers("python", render(builders, "python"), calls, tmp_path)
    assert made == [b"h:dev:single", b"h:o{d}d:single", None]
    assert named["staged"].builder.parameters[0].form.text == "dev or o{d}d"


def test_a_key_that_is_not_text_has_no_builder_and_the_code_says_so() -> None:
    builders = builders_of(policy_of("hard"))
    assert builders.left_out == (("binary", "its keys are not UTF-8 text"),)
    assert all("binary has no function" in render(builders, language) for language in LANGUAGES)


def test_times_to_live_and_fields_are_constants() -> None:
    code = render(builders_of(policy_of("cubesandbox"), "CubeMaster"), "python")
    known: dict[str, object] = {}
    exec(code, known)
    assert known["NODE_METRIC_TTL_SECONDS"] == 600
    assert known["SANDBOX_ROUTE_FIELD_HOST_IP"] == "HostIP"
    exec(render(builders_of(policy_of("hard")), "python"), known)
    assert (known["TYPE_TTL_MIN_MS"], known["TYPE_TTL_MAX_MS"]) == (500, 1500)
    assert known["TYPE_SPECIAL_FIELD_A_B"] == "a b"


def test_an_error_does_not_show_the_value() -> None:
    known: dict[str, object] = {}
    exec(render(builders_of(policy_of("cubesandbox"), "CubeAPI"), "python"), known)
    make = known["api_session"]
    with pytest.raises(ValueError, match="token must be of the form") as refused:
        make("sesame:open")  # type: ignore[operator]
    assert "sesame" not in str(refused.value)


def test_every_function_names_the_page_of_its_entry() -> None:
    code = render(builders_of(policy_of("hard")), "python")
    assert "See https://wiki.example/keys#type-special" in code


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_export_is_the_same_every_time(language: str) -> None:
    builders = builders_of(policy_of("cubesandbox"))
    assert render(builders, language) == render(builders_of(policy_of("cubesandbox")), language)


def test_an_unknown_service_or_a_bad_name_is_an_error() -> None:
    policy = policy_of("cubesandbox")
    with pytest.raises(ValueError, match="'CubeMister' is not a service of the policy: CubeMaster"):
        builders_of(policy, "CubeMister")
    with pytest.raises(ValueError, match="is not a name in go"):
        render(builders_of(policy), "go", "redis-keys")
