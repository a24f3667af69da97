"""A server that takes what MLflow's REST API 2.0 takes, and nothing else: paths, fields, their types and the limits of a request.

Written from MLflow's documentation, not from our client. `problems` are requests that break a rule; a test expects none.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from psyche_core.testing.tracker import Kept

API = "/api/2.0/mlflow/"
FILES = "/api/2.0/mlflow-artifacts/artifacts/"
KEY = re.compile(r"[/\w.\- :]{1,250}")
STATES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")


class Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class Run:
    """What the server knows of a run. metrics: key, step, timestamp and value, in the order in which they came."""

    experiment: str
    name: str
    start: int
    status: str = "RUNNING"
    end: int | None = None
    metrics: list[tuple[str, int, int, float]] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def kept(self) -> Kept:
        texts = {}
        for path, text in self.files.items():
            found = re.fullmatch(r"(.+)/step-(\d{8,})\.txt", path)
            assert found, path
            texts[found[1], int(found[2])] = text
        newest = sorted(self.metrics, key=lambda each: each[2])
        return Kept(figures={(key, step): value for key, step, _, value in newest}, texts=texts, config=dict(self.params))


class MlflowServer:
    """Serves on a port of this machine. Set `answer` to let it fail: it is asked first, and gives a status and a body, or None.

    authorization: the header that every request must have. takes_files: as with --serve-artifacts.
    """

    def __init__(self, *, authorization: str | None = None, takes_files: bool = True, prefix: str = "") -> None:
        self.authorization = authorization
        self.takes_files = takes_files
        self.prefix = prefix
        self.experiments: dict[str, str] = {"Default": "0"}
        self.deleted: set[str] = set()
        self.runs: dict[str, Run] = {}
        self.problems: list[str] = []
        self.asked: list[tuple[str, Any]] = []
        self.answer: Callable[[str], tuple[int, bytes] | None] = lambda path: None
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}{self.prefix}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def run(self) -> Run:
        (run,) = self.runs.values()
        return run

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]

    def respond(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        with self._lock:
            parts = urlsplit(target)
            path = parts.path.removeprefix(self.prefix)
            answered = self.answer(path)
            if answered is not None:
                return answered

            self.headers.append(headers)
            try:
                if self.authorization is not None and headers.get("authorization") != self.authorization:
                    return 401, b"You are not authenticated."

                if not parts.path.startswith(f"{self.prefix}/"):
                    raise Refused(404, "ENDPOINT_NOT_FOUND", target)
                if path.startswith(FILES):
                    return self._file(method, unquote(path.removeprefix(FILES)), body)
                return 200, json.dumps(self._call(method, path, parts.query, headers, body)).encode()
            except Refused as refused:
                if refused.code not in ("RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"):
                    self.problems.append(str(refused))
                return refused.status, json.dumps({"error_code": refused.code, "message": str(refused)}).encode()

    def _file(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if method != "PUT" or not self.takes_files or ".." in path.split("/"):
            raise Refused(400, "INVALID_PARAMETER_VALUE", f"{method} {path}")
        experiment, run_id, artifacts, name = path.split("/", 3)
        run = self._run(run_id)
        if (experiment, artifacts) != (run.experiment, "artifacts"):
            raise Refused(400, "INVALID_PARAMETER_VALUE", path)
        run.files[name] = body.decode()
        return 200, b"{}"

    def _call(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
        what = path.removeprefix(API)
        if method == "GET":
            asked: Any = {name: values[0] for name, values in parse_qs(query).items()}
        elif headers.get("content-type") != "application/json" or len(body) > 1_000_000:
            raise Refused(400, "BAD_REQUEST", f"{headers.get('content-type')}, {len(body)} bytes")
        else:
            asked = json.loads(body)
        self.asked.append((what, asked))
        calls: dict[tuple[str, str], tuple[dict[str, type], Callable[..., dict[str, Any]]]] = {
            ("GET", "experiments/get-by-name"): ({"experiment_name": str}, self._get_experiment),
            ("POST", "experiments/create"): ({"name": str}, self._create_experiment),
            ("POST", "runs/create"): ({"experiment_id": str, "run_name": str, "start_time": int, "tags": list}, self._create_run),
            ("POST", "runs/log-batch"): ({"run_id": str, "metrics": list, "params": list, "tags": list}, self._log_batch),
            ("POST", "runs/update"): ({"run_id": str, "status": str, "end_time": int}, self._update),
        }
        if (method, what) not in calls:
            raise Refused(404, "ENDPOINT_NOT_FOUND", f"{method} {path}")
        fields, call = calls[method, what]
        if {name: type(value) for name, value in asked.items()} != fields:
            raise Refused(400, "INVALID_PARAMETER_VALUE", f"{what}: {asked}")
        return call(**asked)

    def _get_experiment(self, experiment_name: str) -> dict[str, Any]:
        if experiment_name not in self.experiments:
            raise Refused(404, "RESOURCE_DOES_NOT_EXIST", f"no experiment {experiment_name}")
        stage = "deleted" if experiment_name in self.deleted else "active"
        return {
            "experiment": {"experiment_id": self.experiments[experiment_name], "name": experiment_name, "lifecycle_stage": stage}
        }

    def _create_experiment(self, name: str) -> dict[str, Any]:
        if name in self.experiments or not name:
            raise Refused(400, "RESOURCE_ALREADY_EXISTS", name)
        self.experiments[name] = str(len(self.experiments))
        return {"experiment_id": self.experiments[name]}

    def _create_run(self, experiment_id: str, run_name: str, start_time: int, tags: list[Any]) -> dict[str, Any]:
        if experiment_id not in self.experiments.values():
            raise Refused(404, "RESOURCE_DOES_NOT_EXIST", experiment_id)
        run_id = f"{len(self.runs) + 1:032x}"
        self.runs[run_id] = Run(experiment_id, run_name, self._moment(start_time), tags=self._pairs(tags, 8000))
        where = f"{experiment_id}/{run_id}/artifacts"
        uri = f"mlflow-artifacts:/{where}" if self.takes_files else f"s3://bucket/{where}"
        return {"run": {"info": {"run_id": run_id, "artifact_uri": uri, "status": "RUNNING"}, "data": {}}}

    def _log_batch(self, run_id: str, metrics: list[Any], params: list[Any], tags: list[Any]) -> dict[str, Any]:
        run = self._run(run_id)
        for name, given, limit in (("metrics", metrics, 1000), ("params", params, 100), ("tags", tags, 100)):
            if len(given) > limit:
                raise Refused(400, "INVALID_PARAMETER_VALUE", f"{len(given)} {name}")
        if len(metrics) + len(params) + len(tags) > 1000:
            raise Refused(400, "INVALID_PARAMETER_VALUE", "more than 1000 of all together")
        found = []
        for each in metrics:
            types = {name: type(value) for name, value in each.items()}
            if types != {"key": str, "value": float, "timestamp": int, "step": int} or not KEY.fullmatch(each["key"]):
                raise Refused(400, "INVALID_PARAMETER_VALUE", f"a metric: {each}")
            found.append((each["key"], each["step"], self._moment(each["timestamp"]), each["value"]))
        told = self._pairs(params, 6000)
        if any(run.params.get(key, value) != value for key, value in told.items()):
            raise Refused(400, "INVALID_PARAMETER_VALUE", "a parameter was changed")
        run.tags |= self._pairs(tags, 8000)
        run.params |= told
        run.metrics += found
        return {}

    def _update(self, run_id: str, status: str, end_time: int) -> dict[str, Any]:
        run = self._run(run_id)
        if status not in STATES:
            raise Refused(400, "INVALID_PARAMETER_VALUE", status)
        run.status, run.end = status, self._moment(end_time)
        return {"run_info": {"run_id": run_id}}

    def _run(self, run_id: str) -> Run:
        if run_id not in self.runs:
            raise Refused(404, "RESOURCE_DOES_NOT_EXIST", f"no run {run_id}")
        return self.runs[run_id]

    def _moment(self, milliseconds: int) -> int:
        if not 10**11 < milliseconds < 10**14:
            raise Refused(400, "INVALID_PARAMETER_VALUE", f"{milliseconds} are no milliseconds since 1970")
        return milliseconds

    def _pairs(self, pairs: list[Any], longest: int) -> dict[str, str]:
        for each in pairs:
            if {name: type(value) for name, value in each.items()} != {"key": str, "value": str}:
                raise Refused(400, "INVALID_PARAMETER_VALUE", f"a pair: {each}")
            if not KEY.fullmatch(each["key"]) or len(each["value"]) > longest:
                raise Refused(400, "INVALID_PARAMETER_VALUE", f"a pair: {each}")
        return {each["key"]: each["value"] for each in pairs}


def _handler(server: MlflowServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answer = server.respond(self.command, self.path, headers, body)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", answer.decode())
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = _reply

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name there
            pass

    return Handler
