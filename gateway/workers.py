"""Several processes that serve one socket, and their end."""

from __future__ import annotations

import os

from uvicorn.supervisors import Multiprocess

from gateway.worker import END_NOW

_LOOK_S = 0.1


class Workers(Multiprocess):
    """Uvicorn's supervisor, which also ends its workers' drain when it is told to stop a second time."""

    def join_all(self) -> None:
        """Wait for the end of every worker."""
        # A socket that is open here would go on taking connections that nobody answers.
        for listener in self.sockets:
            listener.close()
        self.signal_queue.clear()
        for worker in self.processes:
            while worker.process.is_alive():
                if self.signal_queue:
                    self.signal_queue.clear()
                    self._end_now()
                worker.process.join(_LOOK_S)

    def _end_now(self) -> None:
        for worker in self.processes:
            if worker.pid is not None and worker.process.is_alive():
                os.kill(worker.pid, END_NOW)
