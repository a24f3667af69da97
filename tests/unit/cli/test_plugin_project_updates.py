"""What `psyche plugins update` does with a project, whatever its author did with it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from psyche_core import __version__
from psyche_core.plugins.projects import KINDS, carry_out, make_project, plan_update
from psyche_core.plugins.projects.planning import compared
from psyche_core.plugins.projects.record import MAX_BYTES, RECORD, digest
from psyche_core.plugins.projects.updating import REPLACED, write_changes
from tests.unit.cli.conftest import Psyche

OLDER = b"as an older template had it\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project("data", "Texts", out=tmp_path / "texts")


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def record_of(folder: Path) -> dict[str, object]:
    plain = json.loads((folder / RECORD).read_text())
    assert isinstance(plain, dict)
    return plain


def rewrite(folder: Path, **changed: object) -> None:
    (folder / RECORD).write_text(json.dumps({**record_of(folder), **changed}))


def made_by_older_templates(folder: Path, older: Mapping[str, bytes], *, without: str) -> None:
    """As if these files had been generated with these texts, by psyche 0.0.9, and one not at all."""
    digests = dict(record_of(folder)["files"])  # type: ignore[call-overload]
    for path, text in older.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text)
        digests[path] = digest(text)
    (folder / without).unlink()
    del digests[without]
    rewrite(folder, psyche="0.0.9", files=digests)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_is_up_to_date(psyche: Psyche, tmp_path: Path, kind: str) -> None:
    folder = make_project(kind, "mine", out=tmp_path / "project")
    before = content(folder)
    result = psyche("plugins", "update", folder)
    assert (result.code, result.out) == (0, f"{folder} is up to date with the templates of psyche {__version__}\n")
    assert content(folder) == before


def test_each_file_of_an_older_project_gets_what_fits_it(psyche: Psyche, project: Path) -> None:
    now = content(project)
    old = {"README.md": OLDER, "pyproject.toml": OLDER, "LICENSE": OLDER, "docs/gone.md": OLDER}
    made_by_older_templates(project, old, without="run/state.toml")
    (project / "pyproject.toml").write_text("mine, on both sides\n")
    (project / "tests/test_conformance.py").write_text("mine alone\n")
    (project / "LICENSE").unlink()
    (project / "README.md").chmod(0o640)
    before = content(project)

    dry = psyche("plugins", "update", project, "--dry-run")
    assert dry.code == 0
    assert dry.out.endswith(f"nothing was written; an update from psyche 0.0.9 to psyche {__version__} would write 3 files\n")
    assert content(project) == before

    diff = psyche("plugins", "update", project, "--diff").out
    assert "--- README.md\n+++ README.md\n@@" in diff
    assert "--- pyproject.toml\n+++ pyproject.toml.new\n@@" in diff
    assert "-mine, on both sides\n" in diff
    assert "--- /dev/null\n+++ run/state.toml\n" in diff
    assert content(project) == before

    done = psyche("plugins", "update", project)
    assert done.code == 0
    kept = project / REPLACED / "1"
    summary = f"updated {project} from psyche 0.0.9 to psyche {__version__}, 3 files; what was replaced is in {kept}; "
    summary += "take what you want of each .new file, then remove it"
    assert done.out.splitlines() == [
        "removed   LICENSE: you have removed it; it is not made again",
        "replaced  README.md",
        "left      docs/gone.md: the templates no longer have it; it stays",
        "beside    pyproject.toml: you have changed it; the new text is pyproject.toml.new",
        "added     run/state.toml",
        summary,
    ]
    after = content(project)
    assert after["README.md"] == now["README.md"]
    assert (project / "README.md").stat().st_mode & 0o777 == 0o640
    assert after[f"{REPLACED}/1/README.md"] == OLDER
    assert after["pyproject.toml"] == b"mine, on both sides\n"
    assert after["pyproject.toml.new"] == now["pyproject.toml"]
    assert after["tests/test_conformance.py"] == b"mine alone\n"
    assert after["run/state.toml"] == now["run/state.toml"]
    assert after["docs/gone.md"] == OLDER
    assert "LICENSE" not in after
    assert record_of(project)["psyche"] == __version__

    again = psyche("plugins", "update", project)
    assert "up to date" in again.out
    assert content(project) == after


def test_programs_get_one_object(psyche: Psyche, project: Path) -> None:
    made_by_older_templates(project, {"README.md": OLDER}, without="run/state.toml")
    told = json.loads(psyche("plugins", "update", project, "--json", "--diff").out)
    assert (told["kind"], told["name"], told["from"], told["to"], told["written"]) == (
        "data",
        "Texts",
        "0.0.9",
        __version__,
        False,
    )
    files = {each["path"]: each for each in told["files"]}
    assert (files["README.md"]["outcome"], files["README.md"]["new"]) == ("replaced", "README.md")
    assert f"-{OLDER.decode()}" in files["README.md"]["diff"]
    assert (files["LICENSE"]["outcome"], files["LICENSE"]["new"], files["LICENSE"]["diff"]) == ("current", None, "")

    told = json.loads(psyche("plugins", "update", project, "--json").out)
    assert (told["written"], told["replaced_in"]) == (True, str(project / REPLACED / "1"))
    assert "diff" not in told["files"][0]


def test_the_year_of_the_licence_stays(project: Path) -> None:
    rewrite(project, year=2024)
    plan = plan_update(project)
    (licence,) = [change for change in plan.changes if change.path == "LICENSE"]
    assert licence.template is not None
    assert b"(c) 2024 the authors of psyche-data-texts" in licence.template


def test_what_is_beside_a_file_already_is_not_overwritten(project: Path) -> None:
    made_by_older_templates(project, {"README.md": OLDER}, without="run/state.toml")
    (project / "README.md").write_text("mine\n")
    (project / "README.md.new").write_text("mine, too\n")
    carry_out(plan_update(project))
    assert (project / "README.md.new").read_text() == "mine, too\n"
    assert (project / "README.md.2.new").read_bytes() != OLDER


def test_a_file_that_changes_during_the_update_is_not_replaced(psyche: Psyche, project: Path) -> None:
    made_by_older_templates(project, {"README.md": OLDER}, without="run/state.toml")
    plan = plan_update(project)
    (project / "README.md").write_text("saved this moment\n")
    with pytest.raises(Exception, match="was changed during the update, and is as you left it; update again"):
        carry_out(plan)
    assert (project / "README.md").read_text() == "saved this moment\n"
    assert psyche("plugins", "update", project).code == 0
    assert (project / "README.md").read_text() == "saved this moment\n"
    assert (project / "README.md.new").is_file()


def test_a_link_is_the_author_s_and_what_it_leads_to_is_left_alone(project: Path, tmp_path: Path) -> None:
    made_by_older_templates(project, {"README.md": OLDER}, without="run/state.toml")
    elsewhere = tmp_path / "elsewhere.md"
    (project / "README.md").rename(elsewhere)
    (project / "README.md").symlink_to(elsewhere)
    carry_out(plan_update(project))
    assert (project / "README.md").is_symlink()
    assert elsewhere.read_bytes() == OLDER
    assert (project / "README.md.new").is_file()


def test_a_folder_that_leads_elsewhere_is_a_sentence_and_nothing_is_written(
    psyche: Psyche, project: Path, tmp_path: Path
) -> None:
    made_by_older_templates(project, {"README.md": OLDER}, without="run/state.toml")
    (project / "run").rename(tmp_path / "run")
    (project / "run").symlink_to(tmp_path / "run")
    before = content(project)
    result = psyche("plugins", "update", project)
    assert result.code == 2
    assert "cannot write run/state.toml" in result.err
    assert "run is a symbolic link; nothing was changed; move it away for the update" in result.err
    assert content(project) == before


def test_a_project_of_a_newer_psyche_is_refused(psyche: Psyche, project: Path) -> None:
    for changed in ({"psyche": "97.1.0rc1"}, {"psyche": "97.1.0rc1", "format": 2, "kind": ["new"]}, {"format": 2}):
        rewrite(project, **changed)
        before = content(project)
        result = psyche("plugins", "update", project)
        version = changed.get("psyche", "97.1.0rc1")
        assert (result.code, content(project)) == (2, before)
        assert f"was made or updated by psyche {version}, this is psyche {__version__}; upgrade psyche-core first" in result.err


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{", "\x00", "[" * 100_000, '{"psyche": "0.1.0"}', '{"psyche": 1, "format": "x"}', " " * (MAX_BYTES + 1)],
    ids=["empty", "array", "cut", "nul", "deep", "keys", "types", "large"],
)
def test_a_damaged_record_is_a_sentence(psyche: Psyche, project: Path, damage: str) -> None:
    (project / RECORD).write_text(damage)
    result = psyche("plugins", "update", project)
    assert result.code == 2
    assert f"{RECORD} is not what psyche plugins new writes" in result.err


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"files": {"README.md": 5}}, "is not what psyche plugins new writes"),
        ({"files": []}, "is not what psyche plugins new writes"),
        ({"year": "soon"}, "is not what psyche plugins new writes"),
        ({"name": "../x"}, "cannot be a plugin's name"),
        ({"kind": "colour"}, "there is no template of the kind colour"),
    ],
)
def test_a_record_with_strange_values_is_a_sentence(
    psyche: Psyche, project: Path, changed: dict[str, object], sentence: str
) -> None:
    rewrite(project, **changed)
    result = psyche("plugins", "update", project)
    assert result.code == 2
    assert sentence in result.err


def test_paths_of_a_record_lead_to_no_file_that_is_written(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_bytes(OLDER)
    rewrite(project, files={"../other.txt": digest(OLDER), "a\x00b": "", str(other): digest(OLDER)})
    carry_out(plan_update(project))
    assert other.read_bytes() == OLDER


def test_a_project_without_a_record_says_how_to_begin_one(psyche: Psyche, project: Path) -> None:
    (project / RECORD).unlink()
    (project / "LICENSE").write_text((project / "LICENSE").read_text().replace("(c) 20", "(c) 19"))
    (project / "README.md").write_text("mine\n")
    (project / "run/state.toml").unlink()
    refused = psyche("plugins", "update", project)
    assert refused.code == 2
    assert f"has no {RECORD}, so nothing says which files its author changed" in refused.err
    assert "give --kind data --name Texts: nothing is replaced then" in refused.err

    other = psyche("plugins", "update", project, "--kind", "data", "--name", "Other")
    assert other.code == 2
    assert "names no plugin data.Other; it names data.Texts" in other.err

    done = psyche("plugins", "update", project, "--kind", "data", "--name", "Texts")
    assert done.code == 0
    assert done.out.splitlines()[:2] == [
        "beside    README.md: you have changed it; the new text is README.md.new",
        "added     run/state.toml",
    ]
    assert (project / "README.md").read_text() == "mine\n"
    assert not (project / REPLACED).exists()
    assert "up to date" in psyche("plugins", "update", project).out
    wrong = psyche("plugins", "update", project, "--kind", "model", "--name", "Texts")
    assert wrong.code == 2
    assert f"{RECORD} says data.Texts; leave out --kind and --name" in wrong.err


def test_a_folder_that_is_no_project_is_a_sentence(psyche: Psyche, tmp_path: Path) -> None:
    result = psyche("plugins", "update", tmp_path)
    assert result.code == 2
    assert f"{tmp_path} is no project of a plugin: cannot read {tmp_path / 'pyproject.toml'}: No such file" in result.err
    (tmp_path / "pyproject.toml").write_text("[project\n")
    assert "mend it first" in psyche("plugins", "update", tmp_path).err
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert "give --kind and --name: nothing is replaced" in psyche("plugins", "update", tmp_path).err


def test_a_folder_that_cannot_be_written_to_is_a_sentence_and_the_next_update_goes_on(psyche: Psyche, project: Path) -> None:
    made_by_older_templates(project, {"README.md": OLDER}, without="run/state.toml")
    (project / REPLACED).write_text("a file\n")
    result = psyche("plugins", "update", project)
    assert result.code == 2
    assert f"cannot update {project}" in result.err
    (project / REPLACED).unlink()
    assert psyche("plugins", "update", project).code == 0
    assert (project / "README.md").read_bytes() != OLDER
    assert not list(project.rglob("*.partial"))


PATHS = ("a.txt", "b.txt", "c/d.txt", "a.txt.new", "e.bin")
TEXTS = st.sampled_from([b"", b"one\n", b"one\ntwo\n", b"two\r\n", b"\xff\x00"])
FILES = st.dictionaries(st.sampled_from(PATHS), TEXTS)


@given(old=FILES, new=FILES, edits=st.dictionaries(st.sampled_from(PATHS), st.none() | TEXTS), extra=FILES)
@example(old={"a.txt": b"one\n"}, new={"a.txt": b""}, edits={"a.txt": b"two\r\n", "a.txt.new": b"one\n"}, extra={})
def test_no_line_of_an_author_is_lost(
    old: dict[str, bytes], new: dict[str, bytes], edits: dict[str, bytes | None], extra: dict[str, bytes]
) -> None:
    """Any templates, and any edits of what they gave: files that are changed, removed or made by the author."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        mine = {path: text for path, text in {**extra, **old, **edits}.items() if text is not None}
        for path, text in mine.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(text)
        digests = {path: digest(text) for path, text in old.items()}
        changes = compared(folder, digests, new)
        assert {path: text for path, text in content(folder).items() if path in mine} == mine

        kept = write_changes(folder, changes)
        after = content(folder)
        replaced = {change.path for change in changes if change.outcome == "replaced"}
        assert all(mine[path] == old[path] for path in replaced)
        assert {path: after[path] for path in mine if path not in replaced} == {
            path: text for path, text in mine.items() if path not in replaced
        }
        assert kept is not None or not replaced
        assert all((kept or folder).joinpath(path).read_bytes() == mine[path] for path in replaced)
        for path, text in new.items():  # what is new of the templates is there, but for what the author has removed
            if old.get(path) != text and (path in mine or path not in old):
                assert text in [each for name, each in after.items() if name.startswith(path)]

        again = compared(folder, {path: digest(text) for path, text in new.items()}, new)
        assert [change for change in again if change.new] == []


@pytest.mark.skipif(os.name == "nt", reason="needs links")
def test_a_folder_in_place_of_a_file_stays(tmp_path: Path) -> None:
    (tmp_path / "py.typed").mkdir()
    (change,) = compared(tmp_path, {"py.typed": digest(b"")}, {"py.typed": b"partial\n"})
    assert (change.outcome, change.new) == ("beside", "py.typed.new")
