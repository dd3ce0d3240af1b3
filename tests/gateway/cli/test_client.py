import socket

import click
import pytest

from gateway.cli import client as client_module
from gateway.cli.client import GatewayClient, cell
from tests.fakes.rest_gateway import RestGateway
from tests.gateway.cli.conftest import Ace


def test_the_gateway_and_the_token_come_from_the_environment(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"stages": []})]
    result = ace("stages", ACE_GATEWAY_URL=rest.url + "/", ACE_TOKEN="ace-admin-1")
    assert result.exit_code == 0
    assert (rest.asked[0].path, rest.asked[0].token) == ("/admin/v1/stages?limit=20", "Bearer ace-admin-1")


def test_the_flag_wins_over_the_environment(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, {"stages": []})]
    assert ace("stages", "--gateway", rest.url, ACE_GATEWAY_URL="http://127.0.0.1:1").exit_code == 0
    assert rest.asked[0].token is None


def test_an_unreachable_gateway_is_one_line_with_url_and_what_to_do(ace: Ace) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = ace("backends", "list", "--gateway", url)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: No gateway answers at {url}")
    assert "ace serve" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_gateway_that_is_late_is_not_said_to_be_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "TIME_LIMIT_S", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with GatewayClient(url, None) as client, pytest.raises(click.ClickException) as caught:
            client.get("/admin/v1/backends")
    assert caught.value.message.startswith(
        f"The gateway at {url} has not answered /admin/v1/backends in time"
    )


@pytest.mark.parametrize("url", ["", "localhost:8080", "http://", "http://[::1", "ftp://x"])
def test_a_url_that_is_none_is_one_line_as_well(ace: Ace, url: str) -> None:
    result = ace("backends", "list", "--gateway", url)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: No gateway answers at")


def test_a_refused_token_says_which_variable_to_set(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(401, {"error": {"message": "no"}})]
    result = ace("stages", "--gateway", rest.url)
    assert result.exit_code == 1
    assert "ACE_TOKEN" in result.stderr


def test_an_error_of_the_gateway_is_shown_in_its_own_words(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(409, {"error": {"message": "Backend 'a' exists already."}})]
    result = ace("backends", "add", "a", "http://a", "--gateway", rest.url)
    assert result.exit_code == 1
    assert result.stderr == "Error: Backend 'a' exists already.\n"


@pytest.mark.parametrize("body", ["<html>", {"detail": "x"}, [], None])
def test_an_error_without_words_of_ours_gives_its_status(ace: Ace, rest: RestGateway, body: object) -> None:
    rest.answers = [(503, body)]
    result = ace("stages", "--gateway", rest.url)
    assert result.exit_code == 1
    assert "HTTP 503" in result.stderr


def test_a_server_that_is_no_gateway_is_named_as_such(ace: Ace, rest: RestGateway) -> None:
    rest.answers = [(200, "<html>")]
    result = ace("stages", "--gateway", rest.url)
    assert result.exit_code == 1
    assert "not an ACE gateway" in result.stderr


def test_cells_show_values_without_steering_the_terminal() -> None:
    assert cell(None) == "-"
    assert cell(0.123456) == "0.1235"
    assert cell(["a", "b"]) == "a, b"
    assert cell([]) == "-"
    assert cell("red \x1b[31m\n[bold]x") == "red  [31m [bold]x"
