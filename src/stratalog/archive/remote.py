"""Object stores in the network, through `obstore`: S3 and what speaks its protocol, GCS, Azure.

Credentials, endpoint and region come from the environment, by the names each provider's own tools use
(``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ``GOOGLE_SERVICE_ACCOUNT``, ``AZURE_STORAGE_ACCOUNT_NAME`` …).
`obstore` is the extra ``archive`` and is imported when such a store is opened, not before.

Every put is one request: an upload in parts that a crash cuts short would leave pieces that no listing
shows. So objects are kept small enough (see `archive.upload`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stratalog.archive.objects import ObjectInfo, Objects, Tagged
from stratalog.errors import ArchiveError, ConfigError
from stratalog.fs import Buffer

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_DELETE_AT_ONCE = 500


def open_remote(url: str, *, timeout_ms: int, retries: int) -> Objects:
    """The store at ``url``; ConfigError when obstore is missing or does not know the URL."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store, from_url
    except ImportError as error:
        raise ConfigError(
            f"an archive at {url} needs the package obstore: pip install 'stratalog[archive]'"
        ) from error
    timeout = timedelta(milliseconds=timeout_ms)
    try:
        store = from_url(
            url,
            client_options={
                "timeout": timeout,
                "connect_timeout": min(timeout, timedelta(seconds=10)),
                "allow_http": _plain_http_asked_for(),
            },
            retry_config={"max_retries": retries, "retry_timeout": timeout * (retries + 1)},
        )
    except (BaseError, ValueError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"log.archive.url={url}: {_first_line(error)}") from error
    if not isinstance(store, S3Store | GCSStore | AzureStore):
        raise ConfigError(f"log.archive.url={url}: an archive lies in a directory, in s3://, gs:// or az://")
    return RemoteObjects(store, url.rstrip("/"))


def _plain_http_asked_for() -> bool:
    """An endpoint without TLS is used when somebody set it as such (a server of one's own)."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
    return any(os.environ.get(name, "").startswith("http://") for name in names)


class RemoteObjects:
    """The objects below the prefix that ``store`` was opened with."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        import obstore

        self._api = obstore
        self._store = store
        self.url = url

    def __repr__(self) -> str:
        return f"<RemoteObjects {self.url}>"

    def url_of(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url

    def get(self, key: str) -> Tagged:
        with self._errors(key):
            found = self._api.get(self._store, key)
            meta = found.meta
            return Tagged(bytes(found.bytes()), _tag(meta))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._errors(key):
            data = bytes(self._api.get_range(self._store, key, start=start, length=length))
        if len(data) != length:
            raise ArchiveError(
                f"ends at byte {start + len(data)}, {start + length} wanted", url=self.url_of(key)
            )
        return data

    def put(self, key: str, data: Buffer) -> None:
        with self._errors(key):
            self._api.put(self._store, key, data, use_multipart=False)

    def put_if_absent(self, key: str, data: Buffer) -> str | None:
        return self._put_if(key, data, "create")

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str | None:
        return self._put_if(key, data, json.loads(tag))

    def _put_if(self, key: str, data: Buffer, mode: Any) -> str | None:
        failed = self._api.exceptions
        with self._errors(key):
            try:
                return _tag(self._api.put(self._store, key, data, mode=mode, use_multipart=False))
            except (failed.AlreadyExistsError, failed.PreconditionError, FileNotFoundError):
                return None

    def copy(self, source: str, target: str) -> None:
        """Copy an object on the store's side; FileNotFoundError when there is none."""
        with self._errors(source):
            self._api.copy(self._store, source, target)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._errors(prefix):
            for rows in self._api.list(self._store, prefix.rstrip("/") or None):
                for row in rows:
                    modified_ms = int(row["last_modified"].timestamp() * 1000)
                    yield ObjectInfo(row["path"], row["size"], modified_ms)

    def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        for at in range(0, len(doomed), _DELETE_AT_ONCE):
            some = doomed[at : at + _DELETE_AT_ONCE]
            with self._errors(some[0]):
                try:
                    self._api.delete(self._store, some)
                except FileNotFoundError:
                    self._delete_each(some)

    def _delete_each(self, keys: Sequence[str]) -> None:
        """One of them is not there, and some stores stop at that."""
        for key in keys:
            try:
                self._api.delete(self._store, key)
            except FileNotFoundError:
                continue

    def head(self, key: str) -> ObjectInfo | None:
        with self._errors(key):
            try:
                row = self._api.head(self._store, key)
            except FileNotFoundError:
                return None
        return ObjectInfo(key, row["size"], int(row["last_modified"].timestamp() * 1000))

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(f"no object at {self.url_of(key)}") from None
        except (self._api.exceptions.BaseError, OSError, NotImplementedError, ValueError) as error:
            raise ArchiveError(_first_line(error), url=self.url_of(key)) from error


def _tag(meta: Any) -> str:
    """What the store may want back to recognise this state; stores differ in which of the two they use."""
    known = {name: meta.get(name) for name in ("e_tag", "version")}
    return json.dumps({name: value for name, value in known.items() if value is not None})


def _first_line(error: BaseException) -> str:
    """obstore's messages carry a dump of the response behind the first line."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
