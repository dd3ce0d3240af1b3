import os

import gateway
from tests.fakes.control import ControlPlane


async def test_the_installation_is_shown_without_secrets(control: ControlPlane) -> None:
    shown = await control.get("/admin/v1/installation")
    assert shown["version"] == gateway.__version__
    assert shown["pid"] == os.getpid()
    assert shown["packages"]["fastapi"]
    assert shown["settings"]["port"] == "8080"
    assert shown["settings"]["policy_path"] == str(control.policy_file)
    assert shown["store"]["error"] is None
    assert shown["store"]["revision"] == shown["store"]["newest"]
    assert shown["spans"] == {"url": None, "error": None}
    assert shown["now"] == control.clock()
    assert shown["ready"] == {"ready": True, "reasons": [], "warnings": []}
    assert shown["metrics"] == "ace_requests_total 1.0\n"
    assert shown["recent_lines"] == ["a line"]
