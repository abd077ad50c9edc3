"""The HTTP server of the console, on loopback. Imports little: the rest is imported in the server's own thread."""

from __future__ import annotations

import secrets
import socket
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headrace.cli import session
from headrace.model.errors import InvalidRequestError
from headrace.model.external_access import NetworkName

if TYPE_CHECKING:
    import uvicorn

    from headrace.console.console_state import ConsoleState

RETRY_S = 1.0
"""How long a request to the API is repeated: a page should rather say what is wrong."""

CLOSE_IDLE_S = 5.0
STOP_TIMEOUT_S = 5.0
PACKAGES = ("starlette", "jinja2", "uvicorn")
EXTRA_MISSING = "the console is an extra of the package. To install it: pip install 'headrace[console]'"


def is_installed() -> bool:
    """Whether the extra `headrace[console]` is installed."""
    return all(find_spec(name) is not None for name in PACKAGES)


class ConsoleServer:
    """Serves the console of the deployment at `controller_url`. Call `start` once and `stop` once."""

    def __init__(
        self,
        controller_url: str,
        *,
        auth: session.Auth | None = None,
        port: int = 0,
        network: NetworkName | None = None,
        allows_changes: bool = False,
    ) -> None:
        """Binds the port, 0 for any free one. Raises InvalidRequestError if it is taken."""
        self._controller_url, self._auth, self._network = controller_url, auth, network
        self._allows_changes = allows_changes
        self._token = secrets.token_urlsafe(24)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
        except OSError as error:
            self._socket.close()
            raise InvalidRequestError(f"port {port} of 127.0.0.1 cannot be used: {error.strerror}") from error
        self._socket.listen(128)
        self.port: int = self._socket.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-console", daemon=True)
        self.failure: BaseException | None = None

    @property
    def address(self) -> str:
        """The address with the token, for the user's browser."""
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    def start(self) -> None:
        """Starts to serve in a thread. A browser that comes early waits."""
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the server has ended; returns whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ends the server and closes its readers."""
        self._stopped.set()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - the owner of the thread asks for it
            self.failure = error

    def _serve(self) -> None:
        import uvicorn

        from headrace.adapters.system_clock import SystemClock
        from headrace.console.application import create_application
        from headrace.console.console_state import ConsoleState

        with session.open_client(self._controller_url, self._auth, RETRY_S, self._network) as client:
            console = ConsoleState(client, self._controller_url, SystemClock(), allows_changes=self._allows_changes)
            closer = threading.Thread(target=self._close_idle, args=(console,), name="console-views", daemon=True)
            closer.start()
            try:
                config = uvicorn.Config(
                    create_application(console, self.port, self._token),
                    log_level="warning",
                    access_log=False,  # it would have the token
                    server_header=False,
                    lifespan="off",
                    timeout_graceful_shutdown=1,
                )
                self._server = server = uvicorn.Server(config)
                if not self._stopped.is_set():
                    server.run(sockets=[self._socket])
            finally:
                self._stopped.set()
                closer.join()
                console.close()

    def _close_idle(self, console: ConsoleState) -> None:
        while not self._stopped.wait(CLOSE_IDLE_S):
            console.views.close_idle()
