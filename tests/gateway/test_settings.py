import dataclasses
from pathlib import Path

import pytest

from gateway.errors import SettingsError
from gateway.settings import ALLOWED, Settings


def load(**env: str) -> Settings:
    return Settings.load({"HOME": "/home/someone", **env})


def test_every_field_says_what_it_may_be() -> None:
    assert {item.name for item in dataclasses.fields(Settings)} == set(ALLOWED)


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = load()
    assert (settings.host, settings.port, settings.workers) == ("127.0.0.1", 8080, 1)
    assert settings.max_body_bytes == 32 * 1024 * 1024
    assert settings.policy_path is None
    assert settings.data_dir == Path("/home/someone/.local/share/ace-gateway")


def test_the_data_folder_follows_xdg() -> None:
    assert load(XDG_DATA_HOME="/xdg").data_dir == Path("/xdg/ace-gateway")


def test_variables_are_read_as_their_types() -> None:
    settings = load(ACE_PORT="9000", ACE_IDLE_TIMEOUT_S="2.5", ACE_DATA_DIR="~/ace", ACE_HOST=" ::1 ")
    assert settings.port == 9000
    assert settings.idle_timeout_s == 2.5
    assert settings.data_dir == Path("~/ace").expanduser()
    assert settings.host == "::1"


def test_a_flag_wins_over_a_variable_and_an_absent_flag_does_not() -> None:
    env = {"ACE_PORT": "9000", "ACE_WORKERS": "3", "HOME": "/"}
    settings = Settings.load(env, port=9001, workers=None)
    assert (settings.port, settings.workers) == (9001, 3)


def test_an_empty_variable_is_an_unset_one() -> None:
    assert load(ACE_ADMIN_TOKEN="", ACE_PORT="").port == 8080


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("ACE_PORT", "http", "a whole number from 0 to 65535"),
        ("ACE_PORT", "65536", "a whole number from 0 to 65535"),
        ("ACE_MAX_BODY_BYTES", "3.3554432e+07", "a whole number from 1024 to 2147483648"),
        ("ACE_IDLE_TIMEOUT_S", "nan", "a number from 0.001 to 86400"),
        ("ACE_WORKERS", "0", "a whole number from 1 to 64"),
        ("ACE_STORE_URL", "ace.db", "a SQLAlchemy URL"),
    ],
)
def test_a_wrong_value_is_refused_with_name_and_allowed_values(
    variable: str, value: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(**{variable: value})
    assert variable in str(caught.value)
    assert allowed in str(caught.value)


def test_a_refused_secret_is_not_repeated() -> None:
    with pytest.raises(SettingsError, match="16 to 200") as caught:
        load(ACE_ADMIN_TOKEN="hunter 2")
    assert "hunter" not in str(caught.value)


def test_secrets_are_not_in_the_repr() -> None:
    shown = repr(load(ACE_ADMIN_TOKEN="a" * 16, ACE_RUNNER_TOKEN="b" * 16, ACE_STORE_URL="pg://u:pw@h/d"))
    assert not any(secret in shown for secret in ("a" * 16, "b" * 16, "pw"))


def test_an_unknown_variable_is_refused_with_the_nearest_and_all_known_names() -> None:
    with pytest.raises(SettingsError, match="Did you mean ACE_MAX_BODY_BYTES") as caught:
        load(ACE_MAX_BODY_SIZE="1")
    assert "ACE_RETENTION_DAYS" in str(caught.value)


def test_all_complaints_come_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load(ACE_PORT="x", ACE_WORKERS="y", ACE_NONSENSE="z")
    assert len(str(caught.value).splitlines()) == 3


def test_the_clients_own_variables_are_let_pass() -> None:
    load(ACE_GATEWAY_URL="http://127.0.0.1:8080", ACE_TOKEN="t")


def test_variables_that_kubernetes_sets_for_a_service_named_ace_are_let_pass() -> None:
    settings = load(
        ACE_PORT="tcp://10.0.0.1:8080",
        ACE_SERVICE_HOST="10.0.0.1",
        ACE_GATEWAY_SERVICE_PORT_HTTP="8080",
        ACE_GATEWAY_PORT="tcp://10.0.0.1:8080",
        ACE_GATEWAY_PORT_8080_TCP_ADDR="10.0.0.1",
    )
    assert settings.port == 8080


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_addresses_are_loopback(host: str) -> None:
    assert load(ACE_HOST=host).loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_every_other_host_is_not_loopback(host: str) -> None:
    assert not load(ACE_HOST=host).loopback


def test_a_user_without_a_home_needs_a_data_folder_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert Settings.load({"ACE_DATA_DIR": "/data"}).data_dir == Path("/data")
    with pytest.raises(SettingsError, match="ACE_DATA_DIR"):
        Settings.load({})


def test_the_store_is_a_file_in_the_data_folder_unless_a_url_is_given() -> None:
    assert load(ACE_DATA_DIR="/data").database_url == "sqlite:////data/ace.db"
    assert load(ACE_STORE_URL="postgresql://h/d").database_url == "postgresql://h/d"


def test_the_kill_file_is_in_the_data_folder_unless_it_is_named() -> None:
    assert load(ACE_DATA_DIR="/data").kill_path == Path("/data/kill")
    assert load(ACE_DATA_DIR="/data", ACE_KILL_FILE="/run/kill").kill_path == Path("/run/kill")
    assert load(ACE_DATA_DIR="data").kill_path.is_absolute()


def test_any_word_may_throw_the_kill_switch() -> None:
    assert load(ACE_KILL="tenant a\nmodel b").kill == "tenant a\nmodel b"
    assert load(ACE_KILL="what?").kill == "what?"
    assert load(ACE_KILL="").kill is None


def test_the_policys_source_is_file_or_store() -> None:
    assert load().policy_source == "file"
    with pytest.raises(SettingsError, match="file or store"):
        load(ACE_POLICY_SOURCE="git")


def test_a_secret_is_shown_only_as_set() -> None:
    secret = "secret-of-the-operator"
    shown = load(
        ACE_ADMIN_TOKEN=secret, ACE_STORE_URL=f"postgresql://u:{secret}@db/ace", ACE_PORT="9"
    ).shown()
    assert secret not in repr(shown)
    assert (shown["admin_token"], shown["store_url"], shown["runner_token"]) == ("set", "set", None)
    assert (shown["port"], shown["policy_path"]) == ("9", None)
    assert set(shown) == set(ALLOWED)
