"""The options: every source, their precedence, and the frozen settings they become."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.settings import Level, environment
from pytest_cudafork.settings.devices import Device, DeviceKind
from pytest_cudafork.settings.gpu_requests import GpuChoice
from pytest_cudafork.settings.import_settings import ImportSettings
from pytest_cudafork.settings.marker_map import parse_map
from pytest_cudafork.settings.markers import MAPPED
from pytest_cudafork.settings.option import Option
from pytest_cudafork.settings.options import OPTIONS, Settings, read_settings, spell_out_flags

LOW, MIDDLE, HIGH = 0, 1, 2


# Three values of each option, and the settings that they become.
VALUES: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "cuda_fork_check": (
        ("poison", {"level": Level.POISON}),
        ("fork", {"level": Level.FORK}),
        ("touch", {"level": Level.TOUCH}),
    ),
    "cuda_fork_device": (
        ("none", {"device": Device(DeviceKind.NONE)}),
        ("phantom", {"device": Device(DeviceKind.PHANTOM)}),
        ("phantom:sm_90x2", {"device": Device(DeviceKind.PHANTOM, "sm_90x2")}),
    ),
    "cuda_fork_allow": (
        ("low", {"allow": ("low",)}),
        ("middle.sub", {"allow": ("middle.sub",)}),
        ("high, higher", {"allow": ("high", "higher")}),
    ),
    "cuda_fork_isolate": (
        ("spawn", {"isolate": "spawn"}),
        ("none", {"isolate": "none"}),
        ("auto", {"isolate": "auto"}),
    ),
    "cuda_fork_isolate_scope": (
        ("test", {"isolate_scope": "test"}),
        ("class", {"isolate_scope": "class"}),
        ("module", {"isolate_scope": "module"}),
    ),
    "cuda_fork_isolate_timeout": (
        ("1", {"isolate_timeout": 1.0}),
        ("2.5", {"isolate_timeout": 2.5}),
        ("inf", {"isolate_timeout": math.inf}),
    ),
    "cuda_fork_health": (
        ("fail", {"health": "fail"}),
        ("recover", {"health": "recover"}),
        ("off", {"health": "off"}),
    ),
    "cuda_fork_ledger": (
        ("/x/low", {"ledger": "/x/low"}),
        ("/x/middle", {"ledger": "/x/middle"}),
        ("/x/high", {"ledger": "/x/high"}),
    ),
    "cuda_fork_baseline": (
        ("/x/low", {"baseline": "/x/low"}),
        ("/x/middle", {"baseline": "/x/middle"}),
        ("/x/high", {"baseline": "/x/high"}),
    ),
    "cuda_fork_marker_map": tuple(
        (line, {"marker_map": parse_map(line, MAPPED)})
        for line in ("a=spawn_only", "gpu_{n}=gpus(n)", "b(x)=gpus(x,share=True),c=spawn_only")
    ),
    "cuda_fork_expect_gpus": (
        ("0", {"expect_gpus": 0}),
        ("2", {"expect_gpus": 2}),
        ("8", {"expect_gpus": 8}),
    ),
    "cuda_fork_intent": (
        ("spawned", {"intent": ("spawned",)}),
        ("all", {"intent": ("all",)}),
        ("spawned,all", {"intent": ("spawned", "all")}),
    ),
    "cuda_fork_gpus": (
        ("auto", {"gpus": GpuChoice()}),
        ("2", {"gpus": GpuChoice(most=2, text="2")}),
        ("0,2", {"gpus": GpuChoice(names=("0", "2"), text="0,2")}),
    ),
    "cuda_fork_profile": (
        ("/x/low", {"profile": "/x/low"}),
        ("/x/middle", {"profile": "/x/middle"}),
        ("/x/high", {"profile": "/x/high"}),
    ),
    "cuda_fork_json": (
        ("/low", {"json": "/low"}),
        ("/middle", {"json": "/middle"}),
        ("/high", {"json": "/high"}),
    ),
    "cuda_fork_sarif": (
        ("/low", {"sarif": "/low"}),
        ("/middle", {"sarif": "/middle"}),
        ("/high", {"sarif": "/high"}),
    ),
    "cuda_fork_trace": (
        ("/low", {"trace": "/low"}),
        ("/middle", {"trace": "/middle"}),
        ("/high", {"trace": "/high"}),
    ),
    "cuda_fork_html": (
        ("/low", {"html": "/low"}),
        ("/middle", {"html": "/middle"}),
        ("/high", {"html": "/high"}),
    ),
    "cuda_fork_github": (
        ("all", {"github": ("annotations", "summary")}),
        ("off", {"github": ()}),
        ("summary", {"github": ("summary",)}),
    ),
    "cuda_fork_pack": (
        ("/x/low", {"pack": "/x/low"}),
        ("/x/middle", {"pack": "/x/middle"}),
        ("/x/high", {"pack": "/x/high"}),
    ),
    "cuda_fork_settle": (
        ("0", {"settle": 0}),
        ("1", {"settle": 1 << 30}),
        ("0.5", {"settle": 1 << 29}),
    ),
    "cuda_fork_graphs": (
        ("auto", {"graphs": "auto"}),
        ("cuda", {"graphs": "cuda"}),
        ("software", {"graphs": "software"}),
    ),
    "cuda_fork_captures": (
        ("check", {"captures": "check"}),
        ("all", {"captures": "all"}),
        ("off", {"captures": "off"}),
    ),
}


# The same for the import audit, with the fields of its own settings.
IMPORT_VALUES: dict[str, tuple[tuple[str, Any], ...]] = {
    "packages": (("low", ("low",)), ("middle.sub", ("middle.sub",)), ("a, b", ("a", "b"))),
    "exclude": (("low", ("low",)), ("*.test_*", ("*.test_*",)), ("a.b,c.*", ("a.b", "c.*"))),
    "strict": (("yes", True), ("off", False), ("1", True)),
    "baseline": (("/x/low", "/x/low"), ("/x/middle", "/x/middle"), ("/x/high", "/x/high")),
    "without": (("low", ("low",)), ("a.b+c", ("a.b+c",)), ("d,e", ("d", "e"))),
    "graph": (("/low.dot", "/low.dot"), ("/m.html", "/m.html"), ("/high.dot", "/high.dot")),
    "timeout": (("1", 1.0), ("2.5", 2.5), ("300", 300.0)),
    "jobs": (("1", 1), ("2", 2), ("auto", 0)),
    "memory": (("4G", 4 << 30), ("512M", 512 << 20), ("1024", 1024)),
}


VALUES |= {
    f"cuda_fork_imports{'' if name == 'packages' else f'_{name}'}": tuple(
        (text, {"imports": ImportSettings(**{name: value})}) for text, value in values
    )
    for name, values in IMPORT_VALUES.items()
}


class Ini:
    """An ini file, as far as options are read from it."""

    inipath = Path("/project/pytest.ini")

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def getini(self, name: str) -> str | list[str]:
        text = self._values.get(name, "")
        lines = next(option.lines for option in OPTIONS if option.name == name)
        return text.split() if lines else text


def settings_from(
    monkeypatch: pytest.MonkeyPatch,
    *,
    ini: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    cli: dict[str, str] | None = None,
) -> Settings:
    for option in OPTIONS:
        monkeypatch.delenv(option.env, raising=False)
    # a session in a test heeds less of the environment
    monkeypatch.setattr(environment, "is_set", lambda name: False)
    for name, value in (env or {}).items():
        monkeypatch.setenv(f"PYTEST_{name.upper()}", value)
    namespace = argparse.Namespace(**{option.name: None for option in OPTIONS})
    vars(namespace).update(cli or {})
    return read_settings(cast(pytest.Config, Ini(ini or {})), namespace)


def test_the_table_of_values_covers_every_option() -> None:
    # to update is to need a file, too; to audit a change, a package
    updates = {"cuda_fork_imports_update", "cuda_fork_baseline_update", "cuda_fork_imports_since"}
    assert set(VALUES) | updates == {option.name for option in OPTIONS}


def test_a_change_is_audited_where_a_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    since = {"cuda_fork_imports_since": " main "}
    found = settings_from(monkeypatch, ini={"cuda_fork_imports": "pkg"}, env=since)
    assert (found.imports.packages, found.imports.since) == (("pkg",), "main")
    assert settings_from(monkeypatch, env=since).imports.since == "main"  # it waits for one
    for wrong in ("", "--all"):
        with pytest.raises(pytest.UsageError, match=r"-since: '.*' is not the name of a commit"):
            settings_from(monkeypatch, cli={"cuda_fork_imports_since": wrong})


def test_what_the_controller_has_checked_is_not_checked_elsewhere() -> None:
    """A worker on another host need not have the folders of files that the controller writes."""
    namespace = argparse.Namespace(**{option.name: None for option in OPTIONS})
    namespace.cuda_fork_device, namespace.cuda_fork_json = "phantom", "/no/such/folder/s.json"
    namespace.cuda_fork_imports_since = "main"
    config = cast(pytest.Config, Ini({}))
    found = read_settings(config, namespace, elsewhere=True)
    assert found.json == "/no/such/folder/s.json"
    with pytest.raises(pytest.UsageError):
        read_settings(config, namespace)


def test_a_baseline_is_changed_where_one_is_named_and_something_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {"cuda_fork_baseline": "/x/known", "cuda_fork_check": "fork"}
    for how in ("all", "shrink"):
        found = settings_from(monkeypatch, ini=both, cli={"cuda_fork_baseline_update": how})
        assert found.baseline_update == how
    for ini, words in (
        ({"cuda_fork_check": "fork"}, "there is no file to write: name it with"),
        ({"cuda_fork_baseline": "/x/known"}, "nothing is checked, so nothing is found"),
    ):
        with pytest.raises(pytest.UsageError, match=words):
            settings_from(monkeypatch, ini=ini, cli={"cuda_fork_baseline_update": "all"})
    with pytest.raises(pytest.UsageError, match="'some' is not a way to change it: use all"):
        settings_from(monkeypatch, ini=both, cli={"cuda_fork_baseline_update": "some"})


OF_THE_CHECK = ("cuda_fork_allow", "cuda_fork_baseline", "cuda_fork_device", "cuda_fork_ledger")


@pytest.mark.parametrize("name", VALUES)
def test_command_line_beats_environment_beats_ini_beats_default(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, middle, high = VALUES[name]
    # some are in vain on the command line of a session of whose check nobody says anything, or of
    # an audit
    off = {"cuda_fork_check": "off"} if name in OF_THE_CHECK else {}
    if name.startswith("cuda_fork_imports_"):
        off = {"cuda_fork_imports": ""}

    def read(count: int) -> Settings:
        return settings_from(
            monkeypatch,
            ini={name: low[0]} if count > LOW else None,
            env={name: middle[0]} if count > MIDDLE else None,
            cli={**off, name: high[0]} if count > HIGH else None,
        )

    assert [read(count) for count in range(4)] == [
        Settings(),
        Settings(**low[1]),
        Settings(**middle[1]),
        Settings(**high[1]),
    ]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("cuda_fork_baseline", "no.toml", "no.toml is not read"),
        ("cuda_fork_device", "phantom:sm_90", "phantom:sm_90 is not shown to any test"),
        ("cuda_fork_device", "phantom", "phantom is not shown to any test"),
        ("cuda_fork_device", "real", "real is not shown to any test"),
        ("cuda_fork_ledger", "kept.jsonl", "kept.jsonl is not written"),
        ("cuda_fork_allow", "pkg.workers", "pkg.workers is allowed nothing"),
    ],
)
def test_what_is_in_vain_without_the_check_is_told_where_somebody_typed_it(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {name: value}
    told = f"--{name.replace('_', '-')}: nothing is checked, so {words}: add --cuda-fork-check"
    with pytest.raises(pytest.UsageError, match=told):
        settings_from(monkeypatch, cli=given)
    with pytest.raises(pytest.UsageError, match=f"In the ini file, {name} waits for it"):
        settings_from(monkeypatch, cli=given, env=given, ini=given)
    settings_from(monkeypatch, env=given, ini=given)
    for level in ("off", "fork"):
        settings_from(monkeypatch, cli=given, ini={"cuda_fork_check": level})
    users = {
        "cuda_fork_device": [("cuda_fork_imports", "pkg")],
        "cuda_fork_baseline": [("cuda_fork_intent", "spawned"), ("cuda_fork_expect_gpus", "0")],
    }
    for user, text in users.get(name, ()):
        settings_from(monkeypatch, cli={**given, user: text})
    harmless = {"cuda_fork_device": "none"}
    settings_from(monkeypatch, cli={name: harmless.get(name, "")})


@pytest.mark.parametrize(
    "option", [one for one in OPTIONS if one.name.startswith("cuda_fork_imports_")]
)
def test_what_is_in_vain_without_an_audit_is_told_where_somebody_typed_it(
    option: Option, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = VALUES.get(option.name, (("yes", {}),))[-1][0]
    given = {option.name: text}
    file = {"cuda_fork_imports_baseline": "/x/b.toml"} if "update" in option.name else {}
    told = f"{option.flag}: no package is audited: name it with --cuda-fork-imports=PKG"
    with pytest.raises(pytest.UsageError, match=told):
        settings_from(monkeypatch, cli=given, ini=file)
    with pytest.raises(pytest.UsageError, match=f"In the ini file, {option.name} waits for one"):
        settings_from(monkeypatch, cli=given, env={**file, **given}, ini=given)
    settings_from(monkeypatch, env={**file, **given}, ini={**file, **given})
    for packages in ("", "pkg"):  # an empty one takes back what the ini file may say
        settings_from(monkeypatch, cli={**given, "cuda_fork_imports": packages}, ini=file)
    settings_from(monkeypatch, cli=given, ini={**file, "cuda_fork_imports": "pkg"})


def test_an_update_needs_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"cuda_fork_imports_update": "yes"}
    with pytest.raises(pytest.UsageError, match="--cuda-fork-imports-baseline=FILE"):
        settings_from(monkeypatch, cli=names)
    ini = {"cuda_fork_imports_baseline": "/x/b.toml", "cuda_fork_imports": "pkg"}
    read = settings_from(monkeypatch, cli=names, ini=ini)
    assert read.imports == ImportSettings(("pkg",), baseline="/x/b.toml", update=True)


def test_the_defaults_of_the_import_audit_are_those_of_its_processes() -> None:
    for name in set(ImportSettings._fields) & set(AuditSettings._fields) - {"jobs", "without"}:
        assert ImportSettings._field_defaults[name] == AuditSettings._field_defaults[name]


def test_an_empty_environment_variable_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_from(
        monkeypatch, ini={"cuda_fork_check": "poison"}, env={"cuda_fork_check": ""}
    )
    assert settings.level is Level.POISON


def test_empty_on_the_command_line_takes_back_a_list_or_a_file_of_the_ini_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {
        "cuda_fork_allow": "a",
        "cuda_fork_ledger": "/x/kept",
        "cuda_fork_imports": "pkg",
        "cuda_fork_imports_graph": "/x.dot",
    }
    settings = settings_from(monkeypatch, ini=names, cli=dict.fromkeys(names, ""))
    assert settings == Settings()


def test_a_bare_flag_is_spelled_out_and_the_path_after_it_left_alone() -> None:
    args = ["-q", "--cuda-fork-check", "tests", "--cuda-fork-device", "none"]
    assert spell_out_flags(args)
    assert args == ["-q", "--cuda-fork-check=fork", "tests", "--cuda-fork-device", "none"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--cuda-fork-check", "touch"),
        ("--cuda-fork-baseline-update", "shrink"),
        ("--cuda-fork-intent", "spawned,gpu-skipped"),
        ("--cuda-fork-health", "recover"),
        ("--cuda-fork-captures", "audit"),
        ("--cuda-fork-settle", "0.5"),
        ("--cuda-fork-github", "summary"),
        ("--cuda-fork-imports-strict", "no"),
    ],
)
def test_a_value_behind_a_bare_flag_is_no_path(
    flag: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = f"{flag} {value}: a value follows after '=': write {flag}={value}"
    with pytest.raises(pytest.UsageError, match=f"^{re.escape(told)}$"):
        spell_out_flags(["-q", flag, value, "tests"])
    for rest in (["-x", value], ["tests", value], ["--", value], []):
        assert spell_out_flags([flag, *rest])
    assert spell_out_flags(["--pyargs", flag, value])  # a module
    (tmp_path / value).mkdir()
    assert spell_out_flags([flag, value])


def test_every_bare_flag_is_among_those_whose_values_are_known(tmp_path: Path) -> None:
    bare = [option for option in OPTIONS if option.flag_value]
    assert len(bare) >= 9
    for option in bare:
        with pytest.raises(pytest.UsageError, match="a value follows after '='"):
            spell_out_flags([option.flag, str(option.flag_value)])


@pytest.mark.parametrize("args", [["-q", "tests"], ["--", "--cuda-fork-check"], []])
def test_what_is_no_bare_flag_is_left_alone(args: list[str]) -> None:
    before = list(args)
    assert not spell_out_flags(args)
    assert args == before
