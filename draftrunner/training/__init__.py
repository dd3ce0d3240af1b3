"""Makes the demo's draft model out of the demo model's own answers. Run by `make draft-model`."""
