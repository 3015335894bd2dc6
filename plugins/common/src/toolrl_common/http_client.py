"""Asks a service that takes and gives JSON: one pool of connections, bounded answers, errors that name their cause.

    class Search(JsonClient):
        service, hint = "search server", "Correct the tool's `url`, or the key in `headers`."

    async with Search("http://127.0.0.1:8000/retrieve") as client:
        answer = await client.post({"queries": ["who wrote faust"]}, seconds=30)

What may succeed later is a `TransientToolError`, with the wait that the server asks for. A wrong address or key is a
`ToolsetError`. Everything else is the class `error`: the same request would fail again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Container, Mapping
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

from toolrl import bounded_json
from toolrl.errors import ToolError, ToolrlError, ToolsetError, TransientToolError
from toolrl.tools import parse_retry_after

T = TypeVar("T")
BUSY = (429, 503)
MAX_DETAIL = 300
"""Characters of a server's refusal that are shown."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
_CHUNK = 64 * 1024
_HEADERS = {"Accept": "application/json", "Content-Type": "application/json", "Accept-Encoding": "identity"}


class JsonClient:
    """Asks one address. Used inside `async with`, also several times at once, on one event loop."""

    service: ClassVar[str] = "server"
    hint: ClassVar[str] = "Correct the address, or the key."
    limit_option: ClassVar[str] = ""
    """The user's option that bounds an answer, if there is one."""
    error: ClassVar[type[ToolError]] = ToolError
    misconfigured: ClassVar[type[ToolrlError]] = ToolsetError
    transient: ClassVar[Container[int]] = frozenset({429, 500, 502, 503, 504})
    """Statuses of requests that may succeed later."""
    wrong: ClassVar[Container[int]] = frozenset({301, 302, 303, 307, 308, 401, 403, 404, 405})
    """Statuses of a wrong address or key."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, *, max_bytes: int = 16 << 20) -> None:
        self.url = url
        self._headers = {**_HEADERS, **(headers or {})}
        self._max_bytes = max_bytes
        self._session: Any = None
        self._users = 0

    async def __aenter__(self) -> Self:
        import aiohttp  # type: ignore[import-not-found,unused-ignore]

        self._users += 1
        if self._session is None:
            # How many requests are under way is the caller's to limit: here a wait would count as the server's time.
            connector, cookies = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=cookies, auto_decompress=False)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._users = max(0, self._users - 1)
        if not self._users and self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def post(self, body: Any, *, seconds: float | None) -> Any:
        """The JSON of the answer; None for `seconds` sets no limit. Raises the errors of the module's docstring."""
        import aiohttp

        if self._session is None:
            raise RuntimeError(f"{type(self).__name__} is used inside `async with`")
        try:
            async with self._session.post(
                self.url,
                data=json.dumps(body).encode(),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,  # a POST that is redirected arrives as a GET
            ) as response:
                content = await self._content(response)
        except TimeoutError:
            raise TransientToolError(f"The {self.service} gave no answer within {seconds:g} s.") from None
        except (aiohttp.InvalidURL, aiohttp.ClientSSLError) as error:
            raise self._misconfigured(f"can't be asked: {error}") from error
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError) as error:
            raise TransientToolError(f"The {self.service} can't be reached: {_cause(error)}.") from error
        except aiohttp.ClientError as error:
            raise self.error(f"The {self.service}'s answer is no HTTP: {_cause(error)}.") from error
        if response.status != 200:
            raise self._refused(response, content)
        try:
            return bounded_json.loads(content)
        except ValueError as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: object) -> ToolError:
        """The error for an answer that doesn't have its form."""
        return self.error(f"The {self.service}'s answer can't be read: {str(error)[:MAX_DETAIL]}")

    async def _content(self, response: Any) -> bytes:
        """The whole body, or as much of a refusal as is shown."""
        limit = self._max_bytes if response.status == 200 else 4 * MAX_DETAIL
        content = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            content += chunk
            if len(content) > limit:
                if response.status != 200:
                    break
                option = f" ({self.limit_option})" if self.limit_option else ""
                raise self.error(f"The {self.service}'s answer is larger than {limit / (1 << 20):g} MiB{option}.")
        return bytes(content)

    def _refused(self, response: Any, content: bytes) -> Exception:
        status, said = response.status, refusal_text(content)
        if status in self.transient:
            verb = "is busy" if status in BUSY else "failed"
            wait = parse_retry_after(response.headers.get("Retry-After"))
            return TransientToolError(f"The {self.service} {verb} (HTTP {status}): {said}", retry_after=wait)
        if status in self.wrong:
            to = response.headers.get("Location")
            return self._misconfigured(f"answers HTTP {status}{f', go to {to[:MAX_DETAIL]}' if to else ''}: {said}")
        verb = "refused the request" if 400 <= status < 500 else "failed"
        return self.error(f"The {self.service} {verb} (HTTP {status}): {said}")

    def _misconfigured(self, what: str) -> Exception:
        return self.misconfigured(f"the {self.service} {what}", where=without_secrets(self.url), hint=self.hint)


def service_url(url: str, path: str, example: str) -> str:
    """The address as given, or with `path` where it has none. Raises ValueError for what is no address."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, brackets that aren't closed
        sound = False
    if not sound:
        raise ValueError(f"expected an address such as {example}")
    return parts._replace(path=path).geturl() if parts.path in ("", "/") else url


def without_secrets(url: str) -> str:
    """The address without user, password and query, to be shown and to be a name."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def refusal_text(content: bytes) -> str:
    """The text of a refusal: the `detail`, `message` or `error` of its JSON, else its text."""
    text = content.decode(errors="replace").strip()
    try:
        found: Any = json.loads(content)
        found = found.get("detail") or found.get("message") or found.get("error")
    except (ValueError, RecursionError, AttributeError):
        found = None
    shown = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False) if found else text
    return (shown or "without a word")[:MAX_DETAIL]


def _cause(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:MAX_DETAIL].rstrip(".")


async def patiently(work: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The result of `work`, retried after each TransientToolError for up to `seconds`; the pause doubles, and is at
    least what the server asks for. For requests without a policy around them. Raises the last error."""
    clock = asyncio.get_running_loop().time
    deadline, pause = clock() + seconds, FIRST_PAUSE
    while True:
        try:
            return await work()
        except TransientToolError as error:
            wait = max(pause * random.uniform(0.5, 1.0), error.retry_after or 0.0)
            if clock() + wait > deadline:
                raise
        await asyncio.sleep(wait)
        pause = min(2 * pause, LONGEST_PAUSE)
