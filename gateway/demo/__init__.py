"""ace demo: real speculation end to end on one machine."""
