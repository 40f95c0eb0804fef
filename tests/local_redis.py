"""A Redis server of a test's own."""

import shutil
import subprocess
import threading
from pathlib import Path

from deploy.die_with_parent import die_with_parent
from deploy.services import REDIS_READY, redis_command, redis_url

START_S = 10.0


class LocalRedis:
    """A server in ``folder``, which is made if it is not there. An append-only file found there is
    loaded, and kept at the end if ``keep_data``. Start it on the main thread, once."""

    def __init__(self, folder: Path, *, keep_data: bool = False) -> None:
        self.folder, self.keep_data = folder.absolute(), keep_data
        self.made_folder = not folder.exists()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.url = redis_url(self.folder)
        self.log: list[str] = []
        self.read = threading.Event()  # it is ready, or it has ended

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        self.process = subprocess.Popen(
            die_with_parent(redis_command(self.folder)),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.read.wait(START_S)
        assert self.process.poll() is None, "\n".join(self.log)
        assert REDIS_READY in self.log[-1].lower(), "\n".join(self.log)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.log.append(line.decode(errors="replace").rstrip())
                if REDIS_READY in self.log[-1].lower():
                    self.read.set()
        self.read.set()

    def stop(self, deadline_s: float = 3.0) -> None:
        """SIGTERM, after ``deadline_s`` SIGKILL; then remove its files. Again it does nothing."""
        self.process.terminate()
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(1.0)
        Path(self.url.removeprefix("unix://")).unlink(missing_ok=True)
        if not self.keep_data:
            shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
            for data in (*self.folder.glob("*.aof"), *self.folder.glob("*.rdb")):
                data.unlink()
            if self.made_folder:
                shutil.rmtree(self.folder, ignore_errors=True)
