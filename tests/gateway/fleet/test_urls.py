"""Base URLs in one spelling; addresses that no spelling lets through (BR-C04, BR-C05)."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import MalformedRequest
from gateway.fleet.urls import AddressRefused, CheckedResolver, check_url, why_refused
from tests.fakes.resolver import FakeResolver


@pytest.mark.parametrize(
    ("given_url", "base"),
    [
        ("http://up.test:8000", "http://up.test:8000"),
        ("http://up.test:8000/", "http://up.test:8000"),
        ("http://up.test:8000/v1", "http://up.test:8000"),
        ("http://up.test:8000/v1/", "http://up.test:8000"),
        ("http://up.test:8000//", "http://up.test:8000"),
        ("  http://up.test:8000\n", "http://up.test:8000"),
        ("HTTP://UP.Test", "http://up.test"),
        ("http://up.test.", "http://up.test"),
        ("https://up.test/team-a/llm/v1", "https://up.test/team-a/llm"),
        ("https://up.test/Team-A/v1", "https://up.test/Team-A"),
        ("https://up.test/api/paas/v4", "https://up.test/api/paas/v4"),
        ("http://127.0.0.1:8100", "http://127.0.0.1:8100"),
        ("http://localhost:8100", "http://localhost:8100"),
        ("http://10.1.2.3", "http://10.1.2.3"),
        ("http://[::1]:8100/v1", "http://[::1]:8100"),
        ("http://[2001:DB8::0:1]/", "http://[2001:db8::1]"),
        ("http://[::ffff:10.0.0.1]:1", "http://[::ffff:a00:1]:1"),
        ("http://vllm_0.models.svc.cluster.local", "http://vllm_0.models.svc.cluster.local"),
        ("http://xn--bcher-kva.example", "http://xn--bcher-kva.example"),
    ],
)
def test_a_base_url_has_one_spelling(given_url: str, base: str) -> None:
    assert check_url(given_url) == base
    assert check_url(base) == base


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "only http"),
        ("up.test:8000", "only http"),
        ("file:///etc/passwd", "only http"),
        ("unix:/run/x.sock", "only http"),
        ("gopher://up.test", "only http"),
        ("http://", "no host"),
        ("http:///v1", "no host"),
        ("http://:8000", "no host"),
        ("http://up.test:0", "1 to 65535"),
        ("http://up.test:", "1 to 65535"),
        ("http://up.test:65536", "refused"),
        ("http://up.test:abc", "refused"),
        ("http://up.test:22", "another protocol"),
        ("http://up.test:6379", "another protocol"),
        ("http://up.test/v1/chat/completions", "without /chat/completions"),
        ("http://up.test/v1/models", "without /models"),
        ("http://up.test/?key=1", "query"),
        ("http://up.test?", "query"),
        ("http://up.test/#top", "fragment"),
        ("http://up.test/a/../b", "more than one way"),
        ("http://up.test/v1/v1", "more than one way"),
        ("http://up.test/a//b", "more than one way"),
        ("http://up.test/%2e%2e/b", "more than one way"),
        ("http://up.test\\@169.254.169.254/", "characters"),
        ("http://up.test/a b", "characters"),
        ("http://up.test/\x00", "characters"),
        ("http://bücher.example", "punycode"),
        ("http://a..b", "not a host name"),
        ("http://-a.b", "not a host name"),
        ("http://%31%36%39.254.169.254", "not a host name"),
        ("http://[v1.a]/", "brackets"),
        ("http://[fe80::1%25eth0]/", "zone"),
    ],
)
def test_what_is_no_base_url_is_refused_and_says_why(url: str, why: str) -> None:
    with pytest.raises(MalformedRequest, match="refused") as refused:
        check_url(url)
    assert why in str(refused.value)


@pytest.mark.parametrize("url", ["http://up.test@10.0.0.1/", "http://me:hunter2@up.test", "http://@up.test"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(MalformedRequest, match="by reference") as refused:
        check_url(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "169.254.169.254.",
        "2852039166",
        "0xa9fea9fe",
        "0xa9.0xfe.0xa9.0xfe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "169.16689662",
        "0x7f.1",
        "127.1",
        "0",
        "0x0",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "[::]",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[::169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "[2001:0:a9fe:a9fe::5601:5601]",
        "[fe80::1]",
        "[ff02::1]",
        "[fec0::1]",
        "[fd00:ec2::254]",
        "100.100.100.200",
        "168.63.129.16",
        "metadata.google.internal",
        "METADATA.google.internal.",
        "\uff11\uff16\uff19.254.169.254",
        "169。254。169。254",
        "①⑥⑨.254.169.254",
    ],
)
def test_forbidden_addresses_are_refused_in_every_spelling(host: str) -> None:
    with pytest.raises(MalformedRequest, match="refused"):
        check_url(f"http://{host}/latest/meta-data")


FORBIDDEN_V4 = [IPv4Network(net) for net in ("169.254.0.0/16", "224.0.0.0/4", "0.0.0.0/8", "240.0.0.0/4")]

forbidden = st.sampled_from(FORBIDDEN_V4).flatmap(
    lambda net: st.integers(int(net.network_address), int(net.broadcast_address)).map(IPv4Address)
)


def parts(address: IPv4Address, count: int) -> list[int]:
    """The address as inet_aton's 1 to 4 parts; the last takes the remaining bytes."""
    octets = list(address.packed)
    return [*octets[: count - 1], int.from_bytes(bytes(octets[count - 1 :]))]


bases = st.sampled_from(["{}", "0x{:x}", "0X{:X}", "0{:o}", "000{:o}"])


@st.composite
def spellings(draw: st.DrawFn, addresses: st.SearchStrategy[IPv4Address]) -> str:
    """A way to write an IPv4 address that some resolver or socket library takes."""
    address = draw(addresses)
    embedded = draw(st.sampled_from(["", "::ffff:", "::", "64:ff9b::", "0:0:0:0:0:ffff:", "2002"]))
    if embedded == "2002":
        high, low = int(address) >> 16, int(address) & 0xFFFF
        return f"[2002:{high:x}:{low:x}::{draw(st.integers(0, 65535)):x}]"
    if embedded:
        return f"[{embedded}{address}]"
    numbers = parts(address, draw(st.integers(1, 4)))
    return ".".join(draw(bases).format(number) for number in numbers) + draw(st.sampled_from(["", "."]))


@given(spellings(forbidden))
def test_no_spelling_of_a_forbidden_address_passes(host: str) -> None:
    # ::0.0.0.1 is written like an embedded address, and is loopback.
    if host == "[::0.0.0.1]":
        return
    with pytest.raises(MalformedRequest):
        check_url(f"http://{host}:8000")


@given(spellings(st.integers(0, 2**32 - 1).map(IPv4Address)))
def test_what_passes_is_in_the_one_spelling_that_has_one_meaning(host: str) -> None:
    try:
        base = check_url(f"http://{host}:8000")
    except MalformedRequest:
        return
    kept = base.removeprefix("http://").removesuffix(":8000").strip("[]")
    assert str(ip_address(kept)) == kept
    assert why_refused(ip_address(kept)) is None


@given(st.ip_addresses())
def test_an_address_written_plainly_is_judged_by_itself(address: IPv4Address | IPv6Address) -> None:
    host = f"[{address}]" if address.version == 6 else str(address)
    if why_refused(address):
        with pytest.raises(MalformedRequest):
            check_url(f"http://{host}")
    else:
        assert check_url(f"http://{host}") == f"http://{host}"


@given(st.text(max_size=60))
def test_any_text_is_a_base_url_or_refused(text: str) -> None:
    for url in (text, f"http://{text}"):
        try:
            base = check_url(url)
        except MalformedRequest:
            continue
        assert check_url(base) == base
        assert base.startswith(("http://", "https://"))


@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("127.0.0.1", "::1"), ("2001:db8::1",)])
async def test_a_name_with_allowed_addresses_resolves(addresses: tuple[str, ...]) -> None:
    found = await CheckedResolver(FakeResolver({"up.test": addresses})).resolve("up.test", 8000)
    assert tuple(result["host"] for result in found) == addresses


@pytest.mark.parametrize("bad", ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "0.0.0.0"])
async def test_one_forbidden_address_among_good_ones_refuses_the_name(bad: str) -> None:
    with pytest.raises(AddressRefused, match="never connected to"):
        await CheckedResolver(FakeResolver({"up.test": ["10.0.0.1", bad]})).resolve("up.test", 8000)


async def test_closing_closes_the_inner_resolver() -> None:
    inner = FakeResolver({})
    await CheckedResolver(inner).close()
    assert inner.closed
