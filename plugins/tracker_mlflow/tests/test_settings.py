"""Addresses and credentials: what cannot work is one sentence before the run begins, and holds no secret."""

import base64

import pytest

from psyche_core.config.options.loading import load_settings
from psyche_core.errors import ConfigError
from psyche_tracker_mlflow.settings import MlflowSettings, authorization, check, server_address


def settings(address: str | None) -> MlflowSettings:
    return MlflowSettings(mlflow_tracking_uri=address)


def test_a_missing_address_is_one_sentence_with_the_ways_out() -> None:
    with pytest.raises(ConfigError, match=r"needs the address of an MLflow server: --mlflow-tracking-uri .*MLFLOW_TRACKING_URI"):
        check(MlflowSettings())


@pytest.mark.parametrize(
    "address", ["sqlite:///mlflow.db", "file:///runs", "mlruns", "databricks", "http://", "http://h:x", "http://[::1"]
)
def test_what_is_no_server_of_http_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected the address of an MLflow server, http://HOST"):
        check(settings(address))


@pytest.mark.parametrize("address", ["http://me:secret@host", "file://me:secret@host"])
def test_a_password_in_an_address_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check(settings(address))
    assert "secret" not in str(raised.value)


def test_a_query_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"without \? and #"):
        check(settings("http://host/?a=b"))


@pytest.mark.parametrize("address", ["http://127.0.0.1:5000", "https://host/mlflow", "http://[::1]:5000"])
def test_addresses_that_work(address: str) -> None:
    check(settings(f"{address}/"))
    assert server_address(settings(f"{address}/")) == address


def test_their_variables_count_after_ours_and_after_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "theirs")
    assert MlflowSettings().mlflow_experiment == "theirs"
    monkeypatch.setenv("PSYCHE_MLFLOW_EXPERIMENT", "ours")
    assert MlflowSettings().mlflow_experiment == "ours"
    assert load_settings(MlflowSettings, {"mlflow_experiment": "given"}).mlflow_experiment == "given"


def test_credentials_are_those_that_mlflow_s_client_would_send(monkeypatch: pytest.MonkeyPatch) -> None:
    assert authorization() is None
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc\n")
    assert authorization() == "Bearer abc"
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    assert authorization() == "Bearer abc"
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "pässword")
    scheme, _, pair = str(authorization()).partition(" ")
    assert (scheme, base64.b64decode(pair).decode()) == ("Basic", "me:pässword")


@pytest.mark.parametrize("name", ["USERNAME", "PASSWORD"])
def test_half_a_pair_is_one_sentence(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "secret")
    with pytest.raises(ConfigError, match=rf"MLFLOW_TRACKING_{name} is set and .* is not") as raised:
        check(settings("http://host"))
    assert "secret" not in str(raised.value)


def test_a_token_that_no_header_can_hold_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret\nInjected: yes")
    with pytest.raises(ConfigError, match="no HTTP header can hold") as raised:
        check(settings("http://host"))
    assert "secret" not in str(raised.value)
