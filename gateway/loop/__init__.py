"""The gateway's side of `gateway_loop`: a plain server verifies what a draft runner proposes."""
