"""Settings of all tests: no test may reach a real AWS account, and hypothesis has neither deadlines nor chance."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from headrace.compiled import is_compiled

# What tests share says as much of what it found as the tests themselves.
pytest.register_assert_rewrite(*(path.stem for path in (Path(__file__).parent / "support").glob("*.py")))

from compiled_code import skip_refused_replacement, skip_replacements  # noqa: E402

# Times vary on shared machines: a slow example is no failure, and never a reason for a flaky test. Each run has the
# same examples, so that a change is not refused for what it has not done. `make nightly` has others each time.
settings.register_profile("same", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("random", settings.get_profile("same"), derandomize=False, max_examples=1_000)
settings.load_profile("same")

_AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
os.environ.update(_AWS_ENVIRONMENT)
os.environ.pop("AWS_PROFILE", None)

# A run starts a few hundred processes. Who wants no byte code beside the sources gets it elsewhere: without any, each
# of these processes would compile all that it imports, and that is half of the time of its start.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    _BYTE_CODE = str(Path(__file__).resolve().parents[1] / "build" / "byte-code")
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = os.environ.get("PYTHONPYCACHEPREFIX") or _BYTE_CODE
    sys.dont_write_bytecode = False

# A shell starts what runs in the background with SIGINT ignored, and children inherit that. Tests interrupt both.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Queries of tests are short: compiling their code twice, and collecting garbage in threads, is most of what a JVM does.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

IS_COMPILED = is_compiled()
if IS_COMPILED:
    skip_replacements()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Runs the test; one that cannot run on compiled code is skipped."""
    try:
        return (yield)
    except (AttributeError, TypeError) as error:
        if IS_COMPILED:
            skip_refused_replacement(error)
        raise


@pytest.fixture(scope="session")
def aws_environment() -> dict[str, str]:
    """Made-up credentials for child processes."""
    return dict(_AWS_ENVIRONMENT)


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests that are async functions and marked with `pytest.mark.anyio`."""
    return "asyncio"


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GROWTH_BYTES = 400 << 20
_bytes_after_collection = 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Collects the garbage of earlier tests once the process has grown.

    Python looks at all objects only when their number has grown by a quarter. A killed store is a cycle of few objects
    with many megabytes, so without this a process that has all tests loaded keeps gigabytes of them.
    """
    global _bytes_after_collection
    if _resident_bytes() > _bytes_after_collection + _GROWTH_BYTES:
        gc.collect()
        _bytes_after_collection = _resident_bytes()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
