"""The files of a job in memory, which can stop at a chosen call, as a process that is killed there."""

from __future__ import annotations

from headrace.model.errors import ConflictError, InvalidRequestError, UnavailableError


class Killed(BaseException):
    """The process ends here: nothing of it runs afterwards."""


class FilesInMemory:
    """`JobFiles` with a rows file per directory. `calls_left`: changes until the process is killed; None: never.

    `fails_after_create`: `create` reports an error after it has created the file.
    """

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.calls_left: int | None = None
        self.fails_after_create = False

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/"
        return sorted({path[len(prefix) :].partition("/")[0] for path in self.texts if path.startswith(prefix)})

    def exists(self, path: str) -> bool:
        return any(stored == path or stored.startswith(f"{path}/") for stored in self.texts)

    def read(self, path: str) -> str:
        return self.texts[path]

    def create(self, path: str, text: str) -> None:
        self._step()
        if path in self.texts:
            raise ConflictError(f"{path} exists")
        self.texts[path] = text
        if self.fails_after_create:
            raise UnavailableError("the answer is lost")
        self._step()

    def replace(self, path: str, text: str) -> None:
        if self.is_directory(path):
            raise InvalidRequestError(f"{path} is a directory", code="is_a_directory")
        self._step()
        self.texts[path] = text

    def is_directory(self, path: str) -> bool:
        return self.exists(path) and path not in self.texts

    def replace_rows(self, directory: str, rows: list[int]) -> None:
        """As Spark overwrites a directory: it is deleted, and then the files appear one by one."""
        self._step()
        self.delete(directory)
        for number, row in enumerate(rows):
            self._step()
            self.texts[f"{directory}/part-{number}"] = f"{row:012}"
        self._step()

    def rows(self, directory: str) -> list[int]:
        return [int(self.texts[f"{directory}/{name}"]) for name in self.names(directory)]

    def delete(self, path: str) -> None:
        for stored in [stored for stored in self.texts if stored == path or stored.startswith(f"{path}/")]:
            self._step()
            self.texts.pop(stored, None)  # another process may have deleted it

    def size_bytes(self, directory: str) -> int:
        return sum(len(text) for path, text in self.texts.items() if path.startswith(f"{directory}/"))

    def _step(self) -> None:
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise Killed
            self.calls_left -= 1
