"""Numbers with their evidence: pure functions over counts and times."""
