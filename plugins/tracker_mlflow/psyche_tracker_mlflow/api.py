"""What the tracker says to a server: the part of MLflow's REST API 2.0 that writes a run. Blocking; for one thread.

The server's texts are made safe to show by `printable`. Redirects are not followed, since credentials would go along.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from psyche_core.errors import PsycheError
from psyche_core.text_safety import printable
from psyche_tracker_mlflow.__about__ import __version__

REQUEST_SECONDS = 10.0
"""How long a request may wait for each of: a connection, its next bytes."""

MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
"""What one request of `runs/log-batch` may hold."""

MAX_KEY, MAX_PARAM, MAX_TAG = 250, 6000, 5000
"""Characters of a key, of a parameter and of a tag; older servers take shorter tags than newer ones."""

_SHOWN = 200
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
_LATER = frozenset({401, 403, 408, 425, 429})
"""Refusals that may be over later, without a change of what is sent: of who asks, and of when."""


class MlflowUnavailable(PsycheError):
    """The server cannot be reached, is in trouble, or does not let us in: the same request may succeed later."""


class MlflowRefused(PsycheError):
    """The server refused this request for good. code: MLflow's name of the reason, such as RESOURCE_DOES_NOT_EXIST."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A value of a figure. timestamp: unix milliseconds."""

    key: str
    value: float
    timestamp: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRun:
    """A run on the server. artifacts: path of its files behind the server; None if the server does not take files."""

    run_id: str
    artifacts: str | None


class MlflowApi:
    """Requests to one server. address: without a slash at its end. authorization: header of that name."""

    def __init__(self, address: str, authorization: str | None) -> None:
        headers = {"User-Agent": f"psyche-tracker-mlflow/{__version__}", "Accept": "application/json"}
        if authorization is not None:
            headers["Authorization"] = authorization
        self.address: str = address
        self._client = httpx.Client(headers=headers, timeout=REQUEST_SECONDS)

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def limit(self, seconds: float) -> None:
        """Wait at most so long from now on, instead of REQUEST_SECONDS."""
        self._client.timeout = httpx.Timeout(seconds)

    def experiment_id(self, name: str) -> str:
        """The id of an experiment, which is made if it is not there. Raises MlflowRefused if it is in the server's trash."""
        found = self._experiment(name)
        if found is None:
            try:
                return str(self._part(self._post("experiments/create", {"name": name}), "experiment_id"))
            except MlflowRefused as refused:
                if refused.code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = self._experiment(name)  # another client was faster
        if found is None or found.get("lifecycle_stage") == "deleted":
            message = (
                f"{self.address}: the experiment {printable(name)!r} is deleted; restore it or give another --mlflow-experiment"
            )
            raise MlflowRefused(message)

        return str(self._part(found, "experiment_id"))

    def _experiment(self, name: str) -> Mapping[str, Any] | None:
        try:
            answer = self._ask("GET", "experiments/get-by-name", params={"experiment_name": name})
        except MlflowRefused as refused:
            if refused.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

        experiment = self._part(answer, "experiment")
        return experiment if isinstance(experiment, dict) else {}

    def create_run(self, experiment_id: str, name: str, *, start: int, tags: Mapping[str, str]) -> RemoteRun:
        """Begin a run. start: unix milliseconds."""
        asked = {"experiment_id": experiment_id, "run_name": name, "start_time": start, "tags": _pairs(list(tags.items()))}
        info = self._part(self._post("runs/create", asked), "run", "info")
        run_id = str(self._part(info, "run_id"))
        where = urlsplit(str(info.get("artifact_uri", "")))
        behind_us = where.scheme == "mlflow-artifacts" and not where.netloc
        return RemoteRun(run_id=run_id, artifacts=where.path.strip("/") if behind_us else None)

    def log_batch(
        self,
        run_id: str,
        *,
        metrics: Sequence[Metric] = (),
        params: Sequence[tuple[str, str]] = (),
        tags: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Add to a run, at most MAX_METRICS, MAX_PARAMS and MAX_TAGS, and 1000 of all together."""
        given = [{"key": each.key, "value": each.value, "timestamp": each.timestamp, "step": each.step} for each in metrics]
        self._post("runs/log-batch", {"run_id": run_id, "metrics": given, "params": _pairs(params), "tags": _pairs(tags)})

    def put_text(self, run: RemoteRun, path: str, text: str) -> None:
        """Keep a text as a file of the run, which must take files."""
        assert run.artifacts is not None
        url = f"{_ARTIFACTS}/{quote(f'{run.artifacts}/{path}')}"
        self._send("PUT", url, content=text.encode(errors="replace"), headers={"Content-Type": "text/plain; charset=utf-8"})

    def end_run(self, run_id: str, status: str, *, end: int) -> None:
        """Say how a run ended: FINISHED or FAILED. end: unix milliseconds."""
        self._post("runs/update", {"run_id": run_id, "status": status, "end_time": end})

    def _post(self, what: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._ask("POST", what, json=asked)

    def _ask(self, method: str, what: str, **asked: Any) -> Mapping[str, Any]:
        response = self._send(method, f"/api/2.0/mlflow/{what}", **asked)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            message = f"{self.address} is not an MLflow server: its answer to {what} is no JSON object"
            raise MlflowUnavailable(message)

        return answer

    def _part(self, answer: object, *path: str) -> Any:
        for key in path:
            if not isinstance(answer, dict) or key not in answer:
                message = f"{self.address} is not an MLflow server: an answer has no {'.'.join(path)}"
                raise MlflowUnavailable(message)
            answer = answer[key]
        return answer

    def _send(self, method: str, url: str, **asked: Any) -> httpx.Response:
        """The answer, if it says that it went well."""
        try:
            response = self._client.request(method, f"{self.address}{url}", **asked)
        except httpx.TimeoutException as error:
            message = f"{self.address} did not answer in time"
            raise MlflowUnavailable(message) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            message = f"{self.address} cannot be reached: {printable(str(error) or type(error).__name__, at_most=_SHOWN)}"
            raise MlflowUnavailable(message) from error

        if response.is_success:
            return response

        code, reason = _refusal(response)
        message = f"{self.address} answered {response.status_code}: {reason}"
        if response.is_redirect:
            message = f"{self.address} sends us to {printable(response.headers['location'], at_most=_SHOWN)}; give that address"
        if response.status_code in (401, 403):
            message += "; MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, say who asks"
        if response.status_code in _LATER or response.status_code >= 500 or response.is_redirect:
            raise MlflowUnavailable(message)

        raise MlflowRefused(message, code=code)


def _pairs(pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """As JSON of a request, which can hold no half of a character."""
    return [{"key": key, "value": value.encode(errors="replace").decode()} for key, value in pairs]


def _refusal(response: httpx.Response) -> tuple[str, str]:
    """MLflow's name of the reason, and a short text for people."""
    try:
        told = json.loads(response.content)
        code, message = str(told.get("error_code", "")), str(told.get("message", ""))
    except (ValueError, AttributeError):
        code, message = "", response.reason_phrase
    return code, printable(" ".join((message or response.reason_phrase).split()), at_most=_SHOWN)
