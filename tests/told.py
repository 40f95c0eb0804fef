"""What tests have to tell at the end of a run, beside their outcome: why something was not run, or
what was measured. Also when several processes share the tests."""

LINES: list[str] = []
