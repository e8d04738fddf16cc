"""A package, so that no other `ops` takes its place: test_instruction_sets.py runs by itself."""
