import asyncio
import socket
import stat
from pathlib import Path

import pytest

from gateway.cli.serve import bound_socket, prepare
from gateway.errors import SettingsError
from gateway.settings import Settings
from gateway.store.store import Store
from tests.gateway.cli.conftest import Ace

ADMIN = "an-admin-token-of-the-operator"


def prepared(data: Path, **settings: object) -> str | None:
    return asyncio.run(prepare(Settings.load({}, data_dir=data, **settings)))


def test_the_first_start_makes_an_admin_token_and_later_starts_do_not(tmp_path: Path) -> None:
    made = prepared(tmp_path)
    assert made is not None
    assert made.startswith("ace-admin-")
    assert prepared(tmp_path) is None


def test_an_admin_token_of_the_operator_is_taken_and_not_shown(tmp_path: Path) -> None:
    assert prepared(tmp_path, admin_token=ADMIN) is None


def test_the_first_start_makes_a_runner_token_that_only_the_owner_can_read(tmp_path: Path) -> None:
    prepared(tmp_path)
    file = tmp_path / "runner.token"
    token = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    prepared(tmp_path)
    assert file.read_text() == token


def test_a_runner_token_of_the_operator_is_not_written_down(tmp_path: Path) -> None:
    prepared(tmp_path, runner_token="a-runner-token-of-the-operator")
    assert not (tmp_path / "runner.token").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_others_may_not_connect_before_there_is_a_key(tmp_path: Path, host: str) -> None:
    with pytest.raises(SettingsError, match="ace keys add NAME --tenant TENANT --data") as caught:
        prepared(tmp_path, host=host)
    assert "ACE_ADMIN_TOKEN" in str(caught.value)


def test_a_refused_start_makes_no_admin_token(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        prepared(tmp_path, host="0.0.0.0")
    assert prepared(tmp_path) is not None


def test_an_admin_token_of_the_operator_opens_the_way_for_others(tmp_path: Path) -> None:
    prepared(tmp_path, host="0.0.0.0", admin_token=ADMIN)


def test_a_key_opens_the_way_for_others_until_it_is_revoked(ace: Ace, tmp_path: Path) -> None:
    ace("keys", "add", "ci", "--tenant", "t", "--data", str(tmp_path))
    prepared(tmp_path, host="0.0.0.0")
    key_id = ace("keys", "list", "--data", str(tmp_path)).stdout.splitlines()[1].split()[0]
    ace("keys", "revoke", key_id, "--data", str(tmp_path))
    with pytest.raises(SettingsError, match="no API key"):
        prepared(tmp_path, host="0.0.0.0")


def test_serving_others_without_a_key_is_refused(ace: Ace, tmp_path: Path) -> None:
    result = ace("serve", "--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert "ace keys add" in result.stderr


def test_a_bad_policy_ends_the_start_with_its_complaints(ace: Ace, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules: [{name: a, mode: sometimes}]\nextra: 1\n")
    result = ace("serve", "--policy", str(policy), "--data", str(tmp_path / "data"))
    assert result.exit_code == 1
    assert f"{policy}:2: " in result.stderr
    assert f"{policy}:3: " in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_wrong_flag_is_named_with_what_is_allowed(ace: Ace) -> None:
    result = ace("serve", "--workers", "many")
    assert result.exit_code == 1
    assert "workers" in result.stderr
    assert "1 to 64" in result.stderr


def test_an_unknown_variable_ends_the_start(ace: Ace) -> None:
    result = ace("serve", ACE_MAX_BODY_SIZE="1")
    assert result.exit_code == 1
    assert "ACE_MAX_BODY_BYTES" in result.stderr


def test_a_port_in_use_is_named(ace: Ace, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = ace("serve", "--port", str(port), "--data", str(tmp_path))
    assert result.exit_code == 1
    assert f"Port {port} of 127.0.0.1 is in use" in result.stderr


def test_an_operations_port_in_use_is_named(ace: Ace, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = ace("serve", "--port", "0", "--data", str(tmp_path), ACE_OPERATIONS_PORT=port)
    assert result.exit_code == 1
    assert f"Port {port} of 127.0.0.1 is in use" in result.stderr
    assert "ACE_OPERATIONS_PORT" in result.stderr


def test_one_port_for_both_is_refused(ace: Ace, tmp_path: Path) -> None:
    result = ace("serve", "--port", "18080", "--data", str(tmp_path / "data"), ACE_OPERATIONS_PORT="18080")
    assert result.exit_code == 1
    assert "both 18080" in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(SettingsError, match=r"Cannot listen on port 0 of 192\.0\.2\.1"):
        bound_socket("192.0.2.1", 0)


def test_localhost_is_bound_at_its_ipv4_address() -> None:
    with bound_socket("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_data_folder_that_cannot_be_made_is_one_message(ace: Ace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = ace("serve", "--port", "0", "--data", str(tmp_path / "file" / "data"))
    assert result.exit_code == 1
    assert str(tmp_path / "file" / "data") in result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_policy_file_begins_the_policy_of_an_empty_store(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    for text in ("version: 1  # first\n", "version: 2\n"):
        file.write_text(text)
        prepared(tmp_path / "data", policy_source="store", policy_path=file)
    assert asyncio.run(policies(tmp_path / "data")) == ["version: 1  # first\n"]


async def policies(data: Path) -> list[str]:
    store = Store(Settings(data_dir=data).database_url)
    try:
        return [one.text for one in await store.policies.latest(10)]
    finally:
        await store.close()
