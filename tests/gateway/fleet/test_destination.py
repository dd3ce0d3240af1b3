"""Where an instance is connected to, and as whom it is spoken to."""

import pytest

from gateway.fleet.destination import Destination, destination_of
from gateway.fleet.urls import AddressRefused


@pytest.mark.parametrize(
    ("url", "address", "expected"),
    [
        ("http://gpu-1:8000/team", None, Destination("http://gpu-1:8000/team")),
        (
            "http://llama.svc:8000/team",
            "10.0.0.1",
            Destination("http://10.0.0.1:8000/team", (("host", "llama.svc:8000"),)),
        ),
        (
            "https://llama.svc",
            "fd00::1",
            Destination("https://[fd00::1]", (("host", "llama.svc"),), "llama.svc"),
        ),
    ],
)
def test_an_address_is_connected_to_in_the_names_own_name(
    url: str, address: str | None, expected: Destination
) -> None:
    assert destination_of(url, address) == expected


@pytest.mark.parametrize("address", ["169.254.169.254", "0.0.0.0", "fe80::1"])
def test_an_address_that_is_never_connected_to_is_refused_whoever_kept_it(address: str) -> None:
    with pytest.raises(AddressRefused, match="never connected to"):
        destination_of("http://llama.svc:8000", address)
