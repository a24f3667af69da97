"""Which client a run's version means: the grammar, whom it makes us trust, and texts of people who wish us ill."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.version import InvalidVersion, Version

from psyche_backend_solana.client_version import asks_for_another, canonical_version
from psyche_backend_solana.commands.client.plan import (
    Image,
    PipEnvironment,
    ThisInstallation,
    Trust,
    check_asked,
    plan,
    read_image,
    read_repository,
    read_trust,
)
from psyche_core.errors import ConfigError, UserError

DIGEST = "sha256:" + "0a" * 32
OURS = "0.1.0"
OPEN = Trust(images=("docker.io/", "ghcr.io/", "docker.io/library/"), install=True)
"""Trusts as much as can be."""


@pytest.mark.parametrize("text", ["", "test", "0.1.0", "v0.1.0", "0.1", "00.01.0.0"])
def test_our_own_version_is_this_installation(text: str) -> None:
    assert plan(text, ours=OURS, trust=Trust()) == ThisInstallation()


@pytest.mark.parametrize(
    ("text", "wanted"), [("", None), ("test", None), ("v0.1.0", None), ("0.2", "0.2"), ("v0.1.0rc1", "0.1rc1"), ("a/b:c", None)]
)
def test_what_a_client_started_by_hand_compares_itself_with(text: str, wanted: str | None) -> None:
    assert asks_for_another(text, ours=OURS) == wanted


def test_a_version_of_a_working_tree_is_ours_by_its_text() -> None:
    assert plan("0.2.dev3+g12ab", ours="0.2.dev3+g12ab", trust=Trust()) == ThisInstallation()


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.2.0", "0.2"), ("v9.9.9", "9.9.9"), ("1", "1.0"), ("1.0rc02", "1.0rc2"), ("1.2.3a1.post4.dev5", "1.2.3a1.post4.dev5")],
)
def test_another_version_is_an_environment_where_installing_is_allowed(text: str, version: str) -> None:
    assert plan(text, ours=OURS, trust=Trust(install=True)) == PipEnvironment(version)
    with pytest.raises(UserError, match=r"this is 0\.1\.0: allow psyche-core .* with --allow-install, or join .* --any-version"):
        plan(text, ours=OURS, trust=Trust(images=("docker.io/a/b",)))


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("nousresearch/psyche-client:v0.3", "docker.io/nousresearch/psyche-client:v0.3"),
        (f"ghcr.io/owner/name@{DIGEST}", f"ghcr.io/owner/name@{DIGEST}"),
        (f"ghcr.io/owner/name:tag@{DIGEST}", f"ghcr.io/owner/name:tag@{DIGEST}"),
        ("localhost:5000/psyche:1", "localhost:5000/psyche:1"),
        ("localhost/psyche:1", "localhost/psyche:1"),
        ("psyche:1", "docker.io/library/psyche:1"),
        ("index.docker.io/a/bc:1", "docker.io/a/bc:1"),
    ],
)
def test_an_image_runs_only_where_its_repository_is_allowed(text: str, reference: str) -> None:
    repository = reference.partition("@")[0].removesuffix(":tag")
    repository = repository.rpartition(":")[0] if ":" in repository.rpartition("/")[2] else repository
    owner = repository.rpartition("/")[0] + "/"
    for allowed in (repository, owner):
        assert plan(text, ours=OURS, trust=Trust(images=(allowed,))) == Image(reference)
    for refused in (
        (),
        (repository + "-not",),
        (repository[:-1],),
        (f"x.{repository}",),
        ("ghcr.io/own/",),
        ("docker.io/nous/",),
    ):
        with pytest.raises(UserError, match="allow it with --allow-image"):
            plan(text, ours=OURS, trust=Trust(images=refused, install=True))


def test_a_digest_alone_is_of_the_one_repository_that_is_named() -> None:
    trust = Trust(images=("ghcr.io/owner/", "ghcr.io/owner/name"))
    assert plan(DIGEST, ours=OURS, trust=trust) == Image(f"ghcr.io/owner/name@{DIGEST}")
    for images in ((), ("ghcr.io/owner/",), ("a.b/c", "a.b/d")):
        with pytest.raises(UserError, match="names no repository; name it"):
            plan(DIGEST, ours=OURS, trust=Trust(images=images))


BAD = [
    "latest",
    "ghcr.io/owner/name",
    "ghcr.io/owner/name:",
    "sha256:abc",
    f"ghcr.io/owner/name@{DIGEST}x",
    f"@{DIGEST}",
    "--privileged",
    "-v/:/host",
    "--privileged/x:1",
    "a/-x:1",
    "1.0 --index-url http://evil",
    "1.0\n",
    "1.0\0",
    "psyche @ http://evil/x.whl",
    "https://evil/x:1",
    "file:///etc/passwd",
    "../../etc:1",
    "ghcr.io//x:1",
    "١.٢",  # digits, but not those of ASCII
    "1.0,>=0",
    "1.0;x",
    "1.0+local",
    "1!1.0",
    "\u202e1.0",
    "\x1b[31m1.0",
]


@pytest.mark.parametrize("text", BAD)
def test_what_fits_nowhere_is_refused_in_one_line_that_can_be_printed(text: str) -> None:
    with pytest.raises(UserError, match=r"neither a version .* nor an image") as refused:
        plan(text, ours=OURS, trust=OPEN)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", BAD)
def test_an_owner_cannot_ask_for_what_no_client_can_be(text: str) -> None:
    with pytest.raises(ConfigError, match="which no client can match; expected a version") as refused:
        check_asked(text, ours=OURS, later=True)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", ["v1", "1", "0.2", "0.1.0.1", "0.1.1rc1", "99.0"])
def test_an_owner_asks_for_a_later_version_on_purpose_only(text: str) -> None:
    with pytest.raises(ConfigError, match=r"later than 0\.1\.0 which is installed here"):
        check_asked(text, ours=OURS, later=False)
    check_asked(text, ours=OURS, later=True)


@pytest.mark.parametrize(
    "text", ["", "test", "0.1.0", "v0.1", "0.0.9", "0.1.0rc1", "a/b:latest", f"ghcr.io/a/b@{DIGEST}", DIGEST]
)
def test_what_an_owner_may_ask_for(text: str) -> None:
    check_asked(text, ours=OURS, later=False)


def test_a_member_that_wants_any_version_runs_its_own() -> None:
    for text in (*BAD, "2.0", "a/b:1", DIGEST):
        assert plan(text, ours=OURS, trust=Trust(anything=True)) == ThisInstallation()


LIKELY = st.text(alphabet=string.ascii_letters + string.digits + "-._/:@+! \n\0=,;[]'\"$`\u202e१", max_size=96)
NEAR = st.lists(
    st.sampled_from([*BAD, "1.0", "v2", "a/b:1", DIGEST, "sha256:", "/", ":", "@", "-", "localhost", "ghcr.io", ".", "__"]),
    max_size=4,
).map("".join)


@given(LIKELY | NEAR | st.text(max_size=96))
@example(f"localhost:1/a@{DIGEST}")
def test_no_text_becomes_an_option_or_more_than_one_word(text: str) -> None:
    try:
        found = plan(text, ours=OURS, trust=OPEN)
    except UserError as error:
        sentence = str(error)
        assert sentence.isprintable()
        return

    if isinstance(found, PipEnvironment):
        assert set(found.version) <= set(string.ascii_lowercase + string.digits + ".")
        assert found.version[0].isdigit()
        assert Version(found.version) == Version(text), "the same as PEP 440 has it"
    elif isinstance(found, Image):
        assert set(found.reference) <= set(string.ascii_letters + string.digits + "-._/:@")
        assert found.reference[0].isalnum()
        assert any(found.reference.startswith(trusted) for trusted in OPEN.images)
        assert read_image(found.reference) == found.reference
    else:
        assert text in ("", "test", OURS) or canonical_version(text) == canonical_version(OURS)


@given(LIKELY | st.from_regex(r"v?[0-9.]{1,12}((a|b|rc)[0-9]{0,3})?(\.post[0-9]{0,3})?(\.dev[0-9]{0,3})?", fullmatch=True))
def test_a_version_is_what_packaging_takes_for_the_same(text: str) -> None:
    version = canonical_version(text)
    if version is not None:
        assert Version(version) == Version(text)
        assert canonical_version(version) == version
        return

    try:
        strict = Version(text)
    except InvalidVersion:
        return
    assert strict.epoch or strict.local or text != str(strict), "only what nobody writes is refused"


def test_what_a_member_trusts_is_read_as_strictly() -> None:
    trust = read_trust(("owner/name", "owner/", "ghcr.io/", "localhost:5000/x"), install=True, anything=False)
    assert trust.images == ("docker.io/owner/name", "docker.io/owner/", "ghcr.io/", "localhost:5000/x")
    for image in ("", "/", "a:1", "a@b", "-x", "https://x/y", "a b", f"a@{DIGEST}"):
        with pytest.raises(ConfigError, match="expected a repository without a tag"):
            read_trust((image,), install=False, anything=False)
    assert read_repository("Owner/name") is None
