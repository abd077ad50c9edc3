"""The log of a process: the text for people, the document for a service, and settings that are refused."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.adapters.log_lines import JsonLines, log_format, log_level
from headrace.model.errors import InvalidRequestError


def _document(text: str, *values: object, store: str | None = "store-0", **more: Any) -> dict[str, Any]:
    record = logging.LogRecord(
        "headrace.test", logging.WARNING, __file__, 1, text, values, **({"exc_info": None} | more)
    )
    line = JsonLines(store).format(record)
    assert "\n" not in line
    document: dict[str, Any] = json.loads(line)
    return document


def test_keys_of_an_event_are_fields():
    document = _document("event=storage_retry container=%d retry_s=%.1f error=%r", 3, 0.5, "no 'answer'\n")
    assert document.pop("time").endswith("+00:00")
    assert document == {
        "level": "WARNING",
        "store": "store-0",
        "logger": "headrace.test",
        "event": "storage_retry",
        "details": {"container": 3, "retry_s": 0.5, "error": "no 'answer'\n"},
        "message": "event=storage_retry container=3 retry_s=0.5 error=\"no 'answer'\\n\"",
    }


def test_an_event_without_keys_has_no_details():
    document = _document("event=stopping", store=None)
    assert (document["event"], document["details"], "store" in document) == ("stopping", {}, False)


def test_lines_of_other_libraries_have_their_text():
    document = _document("Found %s of %s", "credentials", "role")
    assert document["message"] == "Found credentials of role"
    assert "event" not in document


def test_a_value_of_an_event_cannot_add_a_key():
    document = _document("event=connection_closed reason=%r", "x container=%d")
    assert document["details"] == {"reason": "x container=%d"}


def test_an_error_has_its_trace():
    try:
        raise ValueError("broken")
    except ValueError:
        document = _document("event=chores_failed", exc_info=sys.exc_info())
    assert "ValueError: broken" in document["trace"]


@given(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.tuples(st.integers()))
)
def test_any_value_becomes_json(value: object):
    found = _document("event=tried value=%s", value)["details"]["value"]
    if isinstance(value, bytes | tuple) or (isinstance(value, float) and not math.isfinite(value)):
        assert found == str(value)
    else:
        assert found == value


@pytest.mark.parametrize(("read", "name"), [(log_level, "HEADRACE_LOG_LEVEL"), (log_format, "HEADRACE_LOG_FORMAT")])
def test_other_settings_are_refused(read: Any, name: str):
    with pytest.raises(InvalidRequestError, match=f"{name} is '?(?i:loud)"):
        read({name: "loud"})
    assert read({}) in ("INFO", "text")


def test_all_that_a_process_says_is_json():
    """Of an error that no code expects, each line of the trace would be a line of the log."""
    program = (
        "import threading, warnings\nfrom headrace.adapters.log_lines import begin_log\n"
        "begin_log('INFO', 'json')\nwarnings.warn('old')\n"
        "thread = threading.Thread(target=lambda: 1 / 0, name='worker')\nthread.start()\nthread.join()\n"
        "quiet = threading.Thread(target=lambda: exit(3))\nquiet.start()\nquiet.join()\n"
        "raise ValueError('broken')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    warned, thread, end = (json.loads(line) for line in done.stderr.splitlines())
    assert "old" in warned["message"]
    assert (thread["event"], thread["details"]) == ("unexpected_error", {"thread": "worker"})
    assert "ZeroDivisionError" in thread["trace"]
    assert (end["level"], end["details"]) == ("CRITICAL", {"thread": "MainThread"})
    assert "ValueError: broken" in end["trace"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_process_writes_the_form_that_it_was_told(form: str):
    program = (
        "import logging\nfrom headrace.adapters.log_lines import begin_log\n"
        f"begin_log('INFO', '{form}', 'store-100%')\nlogging.getLogger('headrace').info('event=left store=%s', 'b')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    if form == "json":
        assert json.loads(line)["details"] == {"store": "b"}
        assert json.loads(line)["store"] == "store-100%"
    else:
        assert line.endswith("level=INFO store=store-100% logger=headrace event=left store=b")
