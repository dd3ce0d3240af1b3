"""The control plane behind a real server: what only shows on a socket."""

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn

from gateway.control.requests import MAX_BODY_BYTES
from tests.fakes.control import ADMIN, ControlPlane, error_of
from tests.fakes.waiting import until

WRONG = {"authorization": "Bearer wrong"}


@pytest.fixture
async def http(control: ControlPlane) -> AsyncIterator[httpx.AsyncClient]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(control.app, log_config=None, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        headers = {"authorization": f"Bearer {ADMIN}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
            yield client
        server.should_exit = True
        await serving


async def test_a_refused_caller_is_answered_whatever_it_sends(http: httpx.AsyncClient) -> None:
    for body in (b"x" * 300_000, b"{", b""):
        error_of(await http.post("/admin/v1/keys", content=body, headers=WRONG), 401)
    assert (await http.get("/admin/v1/keys")).json() == {"keys": []}


async def test_a_chunked_body_without_end_is_cut_off(http: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65_536 + 1):
            yield b" " * 65_536

    error_of(await http.post("/admin/v1/keys", content=chunks()), 413)
    assert (await http.get("/healthz")).status_code == 200


async def test_a_failure_of_ours_leaves_the_server_serving(
    http: httpx.AsyncClient, control: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patched:
        patched.setattr(control.keys, "all", broken)
        assert "secret" not in error_of(await http.get("/admin/v1/keys"), 500)["message"]
    assert (await http.get("/admin/v1/keys")).status_code == 200


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_trouble(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    _, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    head = f"POST /admin/v1/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN}\r\n"
    writer.write(f'{head}content-length: 50\r\n\r\n{{"name"'.encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await http.get("/admin/v1/keys")).json() == {"keys": []}
    assert not [record for record in caplog.records if record.exc_info]
