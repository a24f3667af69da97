"""`Http` keeps the contract of data providers, over a real web server."""

import pytest

from plugins.data_http.tests.conftest import WebServer
from psyche_core.testing.data import DataConformance
from psyche_data_http.provider import HttpData


class TestHttpData(DataConformance):
    @pytest.fixture
    def source(self, web: WebServer) -> WebServer:
        return web

    def provider(self, source: WebServer) -> HttpData:
        return HttpData.of_urls(source.urls(), sequence_length=self.sequence_length, token_size=self.token_size)


class TestFourBytes(TestHttpData):
    token_size = 4


class TestWithoutValidators(TestHttpData):
    """A server that sends neither ETag nor Last-Modified: a changed size is noticed all the same."""

    @pytest.fixture
    def source(self, web: WebServer) -> WebServer:
        web.validators = False
        return web


class TestServerThatIgnoresRanges(TestHttpData):
    @pytest.fixture
    def source(self, web: WebServer) -> WebServer:
        web.always = "ignore range"
        return web


class TestServerWithoutHead(TestHttpData):
    @pytest.fixture
    def source(self, web: WebServer) -> WebServer:
        web.head_fault = "405"
        return web
