"""Commands whose standard streams are closed or full do their work, and tell if its result could not be printed."""

from __future__ import annotations

from collections.abc import Callable

Shell = Callable[[str], tuple[int, str, str]]


def test_commands_work_without_standard_streams(shell: Shell, headrace_scope: str):
    stream = f"{headrace_scope}/t"
    closed, full = "Bad file descriptor\n", "No space left on device\n"
    assert shell(f"headrace stream create {stream} --segments 1 <&- 2>&- > /dev/null")[0] == 0
    assert shell(f"echo 1 > one; headrace event write {stream} one <&-") == (0, "1 event written\n", "")
    assert shell(f"echo 2 | headrace event write {stream} 2>&-") == (0, "1 event written\n", "")
    code, out, err = shell(f"echo 3 | headrace event write {stream} >&-")
    assert (code, out, err) == (1, "", f"headrace event write: cannot write the output: {closed}")
    code, out, err = shell(f"echo 4 | headrace event write {stream} > /dev/full")
    assert (code, out, err) == (1, "", f"headrace event write: cannot write the output: {full}")
    assert shell(f"echo 5 | headrace event write {stream} >&- 2>&-") == (1, "", "")
    code, out, err = shell(f"headrace event write {stream} <&-")
    assert (code, out) == (1, "")
    assert err.startswith("headrace event write: cannot read standard input: Bad file descriptor")
    assert shell(f"headrace event read {stream} <&- 2>&-") == (0, "1\n2\n3\n4\n5\n", "")
    for output, reason in ((">&-", closed), ("> /dev/full", full)):
        for form in ("text", "raw"):
            code, out, err = shell(f"headrace event read {stream} --format {form} {output}")
            assert (code, out, err) == (1, "", f"headrace event read: cannot write the output: {reason}")
    assert shell(f"headrace event read {stream} | head -n 1") == (0, "1\n", "")


def test_an_input_that_breaks_off_is_told(shell: Shell, headrace_scope: str):
    stream = f"{headrace_scope}/t"
    shell(f"headrace stream create {stream} --segments 1")
    code, out, err = shell(f"echo 1 > one; headrace event write {stream} one /proc/self/mem one")
    assert (code, out) == (1, "")
    assert err.startswith("headrace event write: cannot read /proc/self/mem: Input/output error; ")
    assert shell(f"headrace event read {stream}") == (0, "1\n", "")


def test_output_in_another_encoding_is_escaped(shell: Shell, headrace_scope: str):
    stream = f"{headrace_scope}/t"
    shell(f"headrace stream create {stream} --segments 1")
    assert shell(f"echo 'zu → Straße' | headrace event write {stream}")[0] == 0
    assert shell(f"PYTHONIOENCODING=ascii headrace event read {stream}") == (0, "zu \\u2192 Stra\\xdfe\n", "")
    c_locale = "PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 LC_ALL=C"
    assert shell(f"{c_locale} headrace event read {stream}") == (0, "zu \\u2192 Stra\\xdfe\n", "")
