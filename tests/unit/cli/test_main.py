import io
import json
import os
import platform
import signal
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from dflash_cache import errors
from dflash_cache.cli import main as main_module
from dflash_cache.cli.main import main
from dflash_cache.errors import DflashCacheError
from dflash_cache.pipeline import StageStuckError
from tests.support.threads import no_thread_left

EXTRACT = ("extract", "--data", "d", "--target", "t", "--cache", "c")
REPORT = {
    "sequences": 3,
    "tokens": 70,
    "truncated": 1,
    "dropped": {"empty": 2},
    "bytes_raw": 1000,
    "bytes_stored": 900,
    "segments_missing": 0,
    "wall_s": 1.5,
    "critical_stage": "read",
    "critical_share": 0.9,
    "stages": {"read": {"busy_s": 1.0, "starved_s": 0.0, "blocked_s": 0.5}},
    "channels": {"rows": {"capacity": 2, "depth": 1.25}},
}
OF_OURS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, DflashCacheError)
]


@pytest.fixture(autouse=True)
def _leave_no_thread_and_no_handler():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with no_thread_left():
        yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """``dflash-cache`` in this process and an empty folder: its exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)  # a command that wrongly runs must not write into the checkout

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dflash-cache", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        return caught.value.code, output.out, output.err

    return run


@pytest.fixture
def extraction(monkeypatch):
    """Put ``act`` in the place of the extraction: a fault, or a report without the work."""

    def replace(act):
        seen = []

        def extract(config, on_progress):
            seen.append(config)
            return act()

        module = SimpleNamespace(extract=extract)
        monkeypatch.setitem(sys.modules, "dflash_cache.runs.extract", module)
        return seen

    return replace


def raises(error):
    def act():
        raise error

    return act


def test_a_command_that_is_done_exits_with_0(command, extraction):
    seen = extraction(lambda: REPORT)
    code, out, err = command(*EXTRACT, "--limit", "5")
    assert code == 0
    assert seen[0].limit == 5
    assert "Extracted" in out
    assert err == ""


def test_with_json_the_last_line_of_stdout_is_the_report(command, extraction):
    extraction(lambda: REPORT)
    code, out, _ = command(*EXTRACT, "--json")
    assert code == 0
    assert out.endswith("}\n")
    assert json.loads(out.splitlines()[-1]) == REPORT


def test_the_report_is_readable_without_json(command, extraction):
    extraction(lambda: REPORT)
    _, out, _ = command(*EXTRACT)
    for words in ("2 empty", "rows truncated", "starved (no input)", "blocked (no room)"):
        assert words in out


@pytest.mark.parametrize("kind", OF_OURS, ids=lambda kind: kind.__name__)
def test_an_error_of_ours_is_a_message_on_stderr_and_no_trace(command, extraction, kind):
    error = kind("row 3: broken. Mend it")
    error.add_note("raised in stage 'read' of pipeline 'extract'")
    extraction(raises(error))
    code, out, err = command(*EXTRACT)
    assert code == (2 if kind is errors.ConfigError else 1)
    assert out == ""
    assert err == (
        "dflash-cache: row 3: broken. Mend it\n  raised in stage 'read' of pipeline 'extract'\n"
    )


def test_an_error_of_another_kind_keeps_its_trace(monkeypatch, extraction):
    error = KeyError("a bug")
    extraction(raises(error))
    monkeypatch.setattr(sys, "argv", ["dflash-cache", *EXTRACT])
    with pytest.raises(KeyError) as caught:
        main()
    assert caught.value is error


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_ends_with_its_exit_code_and_a_word_on_how_to_go_on(
    command, extraction, number, code
):
    extraction(lambda: os.kill(os.getpid(), number))
    got, _, err = command(*EXTRACT)
    assert got == code
    assert err == f"dflash-cache: stopped by {number.name}; the same command continues\n"


def test_a_command_that_keeps_nothing_of_a_stop_says_that_it_begins_anew(command, monkeypatch):
    monkeypatch.setattr(
        "dflash_cache.runs.plan.plan", lambda _: os.kill(os.getpid(), signal.SIGINT)
    )
    got, _, err = command("plan", "--data", "d", "--target", "t")
    assert got == 130
    assert err == "dflash-cache: stopped by SIGINT; the same command begins anew\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_written_as_an_escape(monkeypatch, encoding):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    monkeypatch.setattr(main_module, "app", lambda: sys.stdout.write("⟦é⟧\n"))
    with pytest.raises(SystemExit):
        main()
    sys.stdout.flush()
    assert written.getvalue().startswith(b"\\u27e6")


def test_a_stuck_stage_is_named_and_the_process_is_ended_at_once(
    command, extraction, monkeypatch, capsys
):
    class Ended(BaseException):
        pass

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(sys, "argv", ["dflash-cache", *EXTRACT])
    extraction(raises(StageStuckError("stage 'extract/write' did not stop")))
    with pytest.raises(Ended) as caught:
        main()
    assert caught.value.args == (1,)
    assert capsys.readouterr().err == "dflash-cache: stage 'extract/write' did not stop\n"


def test_a_configuration_error_exits_with_2_and_says_what_to_change(command):
    code, out, err = command("extract", "--data", "d", "--target", "t")
    assert code == 2
    assert out == ""
    assert err.startswith("dflash-cache: --cache is missing: A cache's folder or address")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--limit", "0"), "--limit 0: must be greater than 0"),
        (("--config", "none.toml"), "--config none.toml does not exist"),
    ],
)
def test_messages_of_configuration_errors_are_on_stderr(command, more, message):
    code, out, err = command(*EXTRACT, *more)
    assert (code, out, err) == (2, "", f"dflash-cache: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*EXTRACT, "--nonsense"), "--nonsense"),
        ((*EXTRACT, "--readers", "many"), "--readers"),
        ((*EXTRACT, "--codec", "gzip"), "gzip"),
        ((*EXTRACT, "--target-layers", "1,x"), "1,x"),
        ((*EXTRACT, "--readers"), "--readers"),
        (("unheard-of",), "unheard-of"),
    ],
    ids=["unknown flag", "no number", "no choice", "no list", "no value", "unknown command"],
)
def test_a_usage_error_exits_with_2_and_a_message_without_a_trace(command, arguments, named):
    code, out, err = command(*arguments)
    assert code == 2
    assert out == ""
    assert named in err
    assert "Traceback" not in err


def test_without_arguments_the_help_is_shown(command):
    code, out, err = command()
    assert code in (0, 2)
    for name in ("extract", "train", "both", "evaluate"):
        assert name in out + err


@pytest.mark.parametrize("name", [(), ("extract",), ("train",), ("both",), ("evaluate",)])
def test_help_exits_with_0(command, name):
    code, out, err = command(*name, "--help")
    assert code == 0
    assert "Usage:" in out
    assert err == ""


def test_version_names_the_package_and_what_results_depend_on(command):
    code, out, err = command("--version")
    assert (code, err) == (0, "")
    names = ("dflash-cache", "torch", "transformers", "datasets", "numpy", "zarr")
    python = f"python {platform.python_version()}"
    assert out.splitlines() == [*(f"{name} {version(name)}" for name in names), python]


@pytest.mark.parametrize("arguments", [EXTRACT, ("--help",)], ids=["extract", "help"])
def test_a_closed_standard_output_is_refused_before_any_work(
    command, extraction, monkeypatch, arguments
):
    seen = extraction(lambda: REPORT)
    monkeypatch.setattr(sys, "stdout", None)
    code, _, err = command(*arguments)
    assert (code, seen) == (2, [])
    assert err == (
        "dflash-cache: standard output is closed; leave out >&-, or give >/dev/null instead\n"
    )


def test_a_closed_standard_error_is_no_error(command, extraction, monkeypatch):
    extraction(lambda: REPORT)
    monkeypatch.setattr(sys, "stderr", None)
    code, out, _ = command(*EXTRACT, "--json")
    sys.stderr.close()  # which the command opened in its place
    assert code == 0
    assert json.loads(out) == REPORT


@pytest.mark.parametrize("words", ["--version", "inspect d.jsonl --print-config"])
def test_a_reader_that_is_gone_ends_the_command_without_a_word(words):
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "dflash_cache.cli", *words.split()]
    ended = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_both_with_some_of_its_data_named_is_not_the_demo(command):
    code, _, err = command("both", "--target", "t")
    assert code == 2
    assert err.startswith("dflash-cache: --data is missing: ")
