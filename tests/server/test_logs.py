"""What must never be written: prompts, outputs, tool results, keys, query strings.

Of our own loggers; `turnwire serve` keeps uvicorn's, which write headers when they are verbose, to
warnings (``test_cli.py``).
"""

from __future__ import annotations

import logging

import aiohttp
import websockets

from running import MODEL, connect

KEY = "sk-canary-key-0123456789"
SECRETS = (
    "canary-prompt",
    "canary-instructions",
    "canary-output",
    "canary-tool",
    "canary-query",
    KEY,
)
SCRIPT = {
    "rules": [{"when": {"contains": "fail"}, "fault": {"kind": "fail", "after_tokens": 1}}],
    "default": {"answer": {"text": "canary-output"}},
}


async def test_nothing_that_was_said_and_no_key_is_logged(serve, caplog):
    caplog.set_level(logging.DEBUG)
    server = serve(SCRIPT, auth={"keys": {"ann": KEY}}, log={"debug": True})
    headers = {"Authorization": f"Bearer {KEY}"}
    async with connect(f"{server.ws_url}?api_key=canary-query", additional_headers=headers) as ws:
        await ws.response("canary-prompt", instructions="canary-instructions")
        await ws.turn("canary-prompt fail")
        await ws.error([{"type": "canary-tool"}])
        await ws.error([{"type": "function_call_output", "call_id": "canary-tool", "output": "x"}])
        await ws.send('{"canary-prompt": ')
        await ws.recv()
    async with aiohttp.ClientSession(server.url, headers=headers) as session:
        body = {"model": MODEL, "input": "canary-prompt"}
        async with session.post("/v1/responses?key=canary-query", json=body) as answer:
            assert answer.status == 200
        async with session.post("/v1/responses", data=b'{"canary-prompt"') as answer:
            assert answer.status == 400
    try:
        async with connect(server, additional_headers={"Authorization": f"Bearer {KEY}-wrong"}):
            raise AssertionError("a wrong key was let in")
    except websockets.InvalidStatus as refused:
        assert refused.response.status_code == 401
    ours = [record for record in caplog.records if record.name.startswith("turnwire")]
    written = "\n".join(logging.Formatter("%(message)s").format(record) for record in ours)
    assert "POST /v1/responses 200" in written
    assert "failed" in written
    for secret in SECRETS:
        assert secret not in written, secret
