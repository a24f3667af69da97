"""The web application: pages, JSON and server-sent events of runs. It only answers GET and HEAD, and changes nothing.

Addresses, relative to where it is mounted: `/` the list, `/run?run=KEY`, `/member?run=KEY&member=KEY`. For programs: `/api/runs`,
`/api/run`, `/api/member`, `/api/losses` (JSON), and `/api/events` (server-sent events, continued after Last-Event-ID). Names are
in the query, so that any text can be one. Starlette is imported when an application is made (extra `web`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from psyche_core.errors import UserError
from psyche_core.observer.documents import FORMAT, head, losses_document, outline
from psyche_core.web.access import COOKIE, Access
from psyche_core.web.feeds import Feed, Feeds, compact
from psyche_core.web.pages import ASSETS, PAGES

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_READERS = 150
"""Most open streams of server-sent events; further ones must try again. Fewer than connections, so that pages still load."""

NEEDED = "the web page needs Starlette and uvicorn: pip install 'psyche-core[web]'"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Page = Callable[["Request"], Awaitable["Response"]]


class WebApp:
    """Shows feeds to visitors that may see them. An ASGI application. Raises UserError if Starlette is not installed."""

    def __init__(self, feeds: Feeds, access: Access) -> None:
        try:
            from starlette.applications import Starlette
            from starlette.middleware import Middleware
            from starlette.middleware.gzip import GZipMiddleware
            from starlette.routing import Mount, Route
            from starlette.staticfiles import StaticFiles
        except ImportError as error:
            raise UserError(NEEDED) from error

        self._feeds = feeds
        self._access = access
        self._readers = 0
        routes = [
            *(Route(page.path, _page(page.html()), methods=["GET"]) for page in PAGES),
            Route("/api/runs", self._runs, methods=["GET"]),
            Route("/api/run", self._run, methods=["GET"]),
            Route("/api/member", self._member, methods=["GET"]),
            Route("/api/losses", self._losses, methods=["GET"]),
            Route("/api/events", self._events, methods=["GET"]),
            Route("/api/login", self._login, methods=["GET"]),
            Mount("/assets", StaticFiles(directory=ASSETS)),
        ]
        self._app = Starlette(routes=routes, middleware=[Middleware(GZipMiddleware, minimum_size=1024)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, as ASGI demands; add the headers that every answer has."""

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                more = {"Cache-Control": "no-cache", **HEADERS}
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in more.items() if name.lower().encode() not in names),
                ]
            await send(message)

        await self._app(scope, receive, with_headers)

    # ---- JSON

    async def _runs(self, request: Request) -> Response:
        shown = [feed for feed in self._feeds if self._may(request, feed.key)]
        runs = [{"key": feed.key, "ready": feed.ready, "outline": outline(feed.view), **head(feed.view)} for feed in shown]
        hidden = self._access.restricted and len(shown) < len(list(self._feeds))
        return _json({"format": FORMAT, "runs": runs, "login": self._access.restricted and (hidden or not shown)})

    async def _run(self, request: Request) -> Response:
        feed = self._feed(request)
        return _missing(request) if feed is None else _text(feed.document(None))

    async def _member(self, request: Request) -> Response:
        feed = self._feed(request)
        text = None if feed is None else feed.document(request.query_params.get("member", ""))
        return _missing(request) if text is None else _text(text)

    async def _losses(self, request: Request) -> Response:
        feed = self._feed(request)
        return _missing(request) if feed is None else _json(losses_document(feed.view))

    async def _events(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        feed = self._feed(request)
        if feed is None:
            return _missing(request)
        if self._readers >= MAX_READERS:
            return _problem(503, "too many pages are open; try again later", {"Retry-After": "30"})

        after = request.headers.get("last-event-id", "") or request.query_params.get("after", "")
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the second: nginx must not buffer events
        stream = self._counted(feed, after=after[:64], member=request.query_params.get("member"))
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _counted(self, feed: Feed, *, after: str, member: str | None) -> Any:
        self._readers += 1
        try:
            async for message in feed.messages(after=after, member=member):
                yield message
        finally:
            self._readers -= 1

    async def _login(self, request: Request) -> Response:
        """Exchange a token in the header for a cookie, so that pages and streams of this browser may be seen."""
        from starlette.responses import Response

        token = _bearer(request)
        if token is None or not self._access.grants(token):
            return _problem(401, "this token opens no run here", {"WWW-Authenticate": "Bearer"})

        response = Response(status_code=204)
        value = self._access.cookie_with(request.cookies.get(COOKIE), token)
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, value, max_age=30 * 86400, httponly=True, samesite="strict", secure=secure, path="/")
        return response

    def _feed(self, request: Request) -> Feed | None:
        """Return the requested run. A run that the visitor may not see is treated as missing."""
        feed = self._feeds.get(request.query_params.get("run", ""))
        return feed if feed is not None and self._may(request, feed.key) else None

    def _may(self, request: Request, key: str) -> bool:
        return self._access.allowed(key, token=_bearer(request), cookie=request.cookies.get(COOKIE))


def _bearer(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" and token.strip() else None


def _page(html: str) -> _Page:
    async def page(request: Request) -> Response:  # noqa: ARG001  # Starlette's signature
        from starlette.responses import HTMLResponse

        return HTMLResponse(html)

    return page


def _json(document: Any) -> Response:
    return _text(compact(document))


def _text(text: str | None) -> Response:
    from starlette.responses import Response

    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})


def _missing(request: Request) -> Response:
    del request
    return _problem(404, "there is no such run or member here, or it is private and needs a token")


def _problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(compact({"problem": sentence}), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")
