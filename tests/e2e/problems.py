"""Held-out word problems, and how an answer ends."""

import json
import re

from bench.stack import ROOT

HELDOUT = [json.loads(line) for line in (ROOT / "models/heldout.jsonl").read_text().splitlines()]


def final_number(text: str) -> str:
    found = re.search(r"#### (-?[\d.]+)", text)
    return found.group(1) if found else ""
