"""Xids: errors that NVIDIA's driver reports about a GPU, by number.

The numbers and their meanings are NVIDIA's catalogue ("XID Errors", GPU deployment and management
docs).
"""

from typing import Final

FAILING: Final = {
    46: "the GPU stopped processing",
    48: "an uncorrected memory error",
    64: "a row could not be remapped",
    74: "an NVLink error",
    79: "the GPU fell off the bus",
    95: "an uncontained memory error",
}
DEGRADED: Final = {
    63: "a memory row was remapped; it takes effect with the next reset",
    94: "a contained memory error",
}
CRITICAL: Final = frozenset({46, 48})
"""After one of these the GPU must not compute until it has been reset."""


def meaning(number: int) -> str:
    return FAILING.get(number) or DEGRADED.get(
        number, "see NVIDIA's catalogue; the program may have caused it"
    )
