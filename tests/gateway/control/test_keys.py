"""Keys over REST."""

from tests.fakes.control import ControlPlane, error_of

KEYS = "/admin/v1/keys"


async def test_a_key_is_shown_once_and_then_only_its_prefix(control: ControlPlane) -> None:
    reply = await control.http.post(KEYS, json={"name": "laptop", "tenant": "search"})
    issued = reply.json()
    assert reply.status_code == 201
    assert reply.headers["cache-control"] == "no-store"
    assert set(issued) == {"id", "name", "tenant", "key", "prefix"}
    assert control.keys.identify(f"Bearer {issued['key']}".encode()) == "search"
    listed = await control.http.get(KEYS)
    assert listed.json() == {
        "keys": [
            {
                "id": issued["id"],
                "name": "laptop",
                "tenant": "search",
                "prefix": issued["prefix"],
                "created_at": control.clock.now,
                "revoked_at": None,
            }
        ]
    }
    assert issued["key"] not in listed.text


async def test_a_revoked_key_is_refused_and_listed_as_revoked(control: ControlPlane) -> None:
    issued = (await control.http.post(KEYS, json={"name": "laptop", "tenant": "search"})).json()
    reply = await control.http.delete(f"{KEYS}/{issued['id']}")
    assert (reply.status_code, reply.content) == (204, b"")
    assert (await control.get(KEYS))["keys"][0]["revoked_at"] == control.clock.now


async def test_an_unknown_key_is_not_found(control: ControlPlane) -> None:
    assert error_of(await control.http.delete(f"{KEYS}/nobody"), 404)["code"] == "not_found"


async def test_names_that_are_not_allowed_make_no_key(control: ControlPlane) -> None:
    error_of(await control.http.post(KEYS, json={"name": "a b", "tenant": "t"}), 400)
    assert await control.get(KEYS) == {"keys": []}
