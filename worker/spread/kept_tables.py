"""Tables of step times that were measured on this node, kept for the next start.

A file has the table of groups of one size, and names what its times depend on. All workers of a
node look into the same folder, so the members of a group find the same file; the first one that is
written stays.
"""

import json
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile

from decode.spread_table import StepTable, document, parsed
from decode.spread_trials import TimedStep

BASIS = "some steps timed by an idle spread group of this node, the others scaled by them"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeTable:
    """A measured table, with the digest by which members see that they have the same one."""

    table: StepTable
    digest: int


@dataclass(frozen=True)
class KeptTables:
    """The files in ``folder``. ``of``: what times depend on beside the size of the group, such as
    GPU, model, weight format and kernels."""

    folder: Path
    of: str
    _complained: set[str] = field(default_factory=set, repr=False)

    def find(self, num_members: int) -> NodeTable | None:
        """The table kept for groups of so many members; None if no file holds it."""
        try:
            text = self.path(num_members).read_text()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._complain(num_members, error)
            return None
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or found.get("of") != self._named(num_members):
                raise ValueError("its times are of something else")
            return NodeTable(parsed(found), _digest(text))
        except ValueError as error:
            self._complain(num_members, error)
            return None

    def keep(self, num_members: int, table: StepTable, timed: Sequence[TimedStep]) -> NodeTable:
        """Write a measured table, unless another member has just written its own. Returns the kept
        table; if no file can be written, ``table``."""
        found = document(
            table.steps, "measured", BASIS, table.experts, estimated=sorted(table.estimated),
            of=self._named(num_members), timed=[list(step) for step in sorted(timed)],
        )  # fmt: skip
        text = json.dumps(found) + "\n"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=self.folder, prefix=".baton-spread-steps-") as file:
                file.write(text)
                file.flush()
                self._put(file.name, num_members)
        except OSError as error:
            log.warning("the next start will time decode steps again: %s", error)
        return self.find(num_members) or NodeTable(parsed(found), _digest(text))

    def path(self, num_members: int) -> Path:
        name = sha256(self._named(num_members).encode()).hexdigest()[:16]
        return self.folder / f"baton-spread-steps-{name}.json"

    def _named(self, num_members: int) -> str:
        return f"{self.of}, {num_members} members"

    def _put(self, written: str, num_members: int) -> None:
        """Name the whole file; a file of that name stays unless it is broken."""
        path = self.path(num_members)
        try:
            os.link(written, path)
        except FileExistsError:
            if self.find(num_members) is None:
                path.unlink(missing_ok=True)
                os.link(written, path)

    def _complain(self, num_members: int, error: Exception) -> None:
        path = str(self.path(num_members))
        if path not in self._complained:
            self._complained.add(path)
            log.warning("%s is not used, and decode steps are timed again: %s", path, error)


def _digest(text: str) -> int:
    """Never 0, which stands for no table."""
    return zlib.crc32(text.encode()) or 1
