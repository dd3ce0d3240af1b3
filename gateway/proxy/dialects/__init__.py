"""How a decision is spelled in a request, one file per engine kind that needs one."""
