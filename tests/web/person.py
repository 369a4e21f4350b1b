"""Someone with a browser, in front of a running keyfence: cookies, forms, redirects, and no JavaScript."""

from __future__ import annotations

import html
import http.client
import re
import urllib.parse
from contextlib import closing

from tests.servers import PATIENCE_SECONDS, Keyfence


class Person:
    """Reads the page of one keyfence, and signs in if there is a token."""

    def __init__(self, keyfence: Keyfence | str, token: str = "") -> None:
        """`keyfence`: also the URL of its page."""
        url = keyfence if isinstance(keyfence, str) else keyfence.ready.admin
        parts = urllib.parse.urlsplit(url)
        assert parts.hostname
        assert parts.port
        self._address = parts.hostname, parts.port
        self._cookie = ""
        self._csrf = ""
        if token:
            status, where, _ = self.ask("POST", "/sign-in", name="ann", token=token, back="/")
            assert (status, where) == (303, "/")
            found = re.search('name="csrf" value="([^"]+)"', self.ask("GET", "/")[2])
            assert found is not None
            self._csrf = found[1]

    def ask(self, method: str, path: str, **form: str) -> tuple[int, str, str]:
        """Status, Location and text of one answer."""
        headers = {"Accept": "text/html", "Cookie": self._cookie}
        if form:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        with closing(http.client.HTTPConnection(*self._address, timeout=PATIENCE_SECONDS)) as connection:
            connection.request(method, path, urllib.parse.urlencode(form) if form else None, headers)
            answer = connection.getresponse()
            cookie = answer.getheader("Set-Cookie")
            if cookie:
                self._cookie = cookie.partition(";")[0]
            return answer.status, answer.getheader("Location", ""), answer.read().decode()

    def read(self, path: str, status: int = 200) -> str:
        """The main part of a page, as text."""
        answered, _, text = self.ask("GET", path)
        assert answered == status, text
        return said(text)

    def do(self, action: str, **form: str) -> str:
        """Carry out an action; the page after it, as text."""
        form = {"csrf": self._csrf, "why": "a test", "back": "/findings", **form}
        status, where, text = self.ask("POST", f"/do/{action}", **form)
        return said(text) if status == 200 else self.read(where)


def said(text: str) -> str:
    main = re.search(r"(?s)<main.*</main>", text)
    assert main is not None, text
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", main.group())).split())
