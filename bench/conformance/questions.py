"""What the checks ask: short, harmless, and with an answer long enough to look into."""

SUM = (
    "Nina has 13 shells. Diana gives Nina 46 shells. She loses 11 of them. "
    "How many shells does Nina have now?"
)
OTHERS = (
    "A cup costs $3 and a plant costs $7. Weng buys {0} cups and 2 plants. "
    "How much does she pay in total?"
)
TEXT = "Once upon a time there was a"
