"""Tokens: who may see which run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_core.errors import ConfigError, UserError
from psyche_core.web.access import Access

ALL, ONE = "a" * 16, "b" * 16


def written(folder: Path, text: str) -> Access:
    path = folder / "tokens"
    path.write_text(text)
    return Access.load(path)


def test_without_a_file_everything_is_public() -> None:
    access = Access.load(None)
    assert not access.restricted
    assert access.allowed("any", token=None, cookie=None)
    assert not access.grants(ALL)


def test_a_token_for_everything_makes_everything_private(tmp_path: Path) -> None:
    access = written(tmp_path, f"# of our group\n{ALL}\n\nsecret run {ONE}\n")
    assert access.restricted
    for run in ("secret run", "another"):
        assert not access.allowed(run, token=None, cookie=None)
        assert not access.allowed(run, token="c" * 16, cookie="c" * 64)
        assert access.allowed(run, token=ALL, cookie=None)
    assert access.allowed("secret run", token=ONE, cookie=None)
    assert not access.allowed("another", token=ONE, cookie=None)


def test_tokens_of_runs_leave_the_others_public(tmp_path: Path) -> None:
    access = written(tmp_path, f"secret {ONE}\n")
    assert access.allowed("another", token=None, cookie=None)
    assert not access.allowed("secret", token=None, cookie=None)


def test_a_cookie_proves_and_does_not_tell_the_token(tmp_path: Path) -> None:
    access = written(tmp_path, f"{ALL}\nsecret {ONE}\n")
    cookie = access.cookie_with(None, ONE)
    assert ONE not in cookie
    assert access.allowed("secret", token=None, cookie=cookie)
    assert not access.allowed("another", token=None, cookie=cookie)
    both = access.cookie_with(cookie, ALL)
    assert access.allowed("another", token=None, cookie=both)
    assert not access.allowed("secret", token=None, cookie=ONE), "the token itself is no proof"
    assert not written(tmp_path, f"secret {'d' * 16}\n").allowed("secret", token=None, cookie=both), "its token is gone"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no token"),
        ("# none\n", "has no token"),
        ("short\n", "line 1: a token has 16 to 256"),
        (f"{ALL}\nrun shört-but-long-enough\n", "line 2"),
    ],
)
def test_a_file_that_protects_nothing_is_an_error(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        written(tmp_path, text)
    assert ALL not in str(raised.value), "an error never shows a token"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the tokens in .*openssl rand"):
        Access.load(tmp_path / "missing")


@given(cookie=st.text(max_size=200), token=st.text(max_size=40))
def test_nothing_else_opens_a_run(cookie: str, token: str) -> None:
    access = Access(for_all=[ALL])
    assert access.allowed("run", token=token, cookie=cookie) == (token == ALL)
