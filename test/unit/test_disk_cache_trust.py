"""The kernel cache runs only what this user alone can have written, and hangs on nothing that lies in its place."""

import errno
import json
import os
import resource
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.backends import disk_cache, own_files
from processes import run_python

KEY, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache with one entry, whose warnings are errors."""
    made = tmp_path / "cache"
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(made))
    monkeypatch.setattr(own_files, "_WARNED", set())
    monkeypatch.setattr(own_files, "_SWEPT", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk_cache.save(KEY, "so", b"code", {"x": 1})
        assert disk_cache.load(KEY, "so") == (b"code", {"x": 1})
        yield made


def ignored_with_one_warning(match: str) -> None:
    with pytest.warns(RuntimeWarning, match=match):
        assert disk_cache.load(KEY, "so") is None
    assert disk_cache.load(KEY, "so") is None  # a warning would be an error here


def test_folder_and_entries_are_made_for_this_user_alone(folder: Path) -> None:
    before = os.umask(0)
    try:
        disk_cache.save(OTHER, "so", b"", {})
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    ignored_with_one_warning(rf"others may write it \(mode {mode:04o}\).*chmod go-w {folder}.*ATTN_MLIR_CACHE")
    disk_cache.save(OTHER, "so", b"", {})
    assert len(list(folder.iterdir())) == 2


def test_a_folder_of_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    ignored_with_one_warning(f"belongs to user {folder.stat().st_uid}.*ATTN_MLIR_CACHE")


def test_a_folder_that_is_linked_to_is_looked_at_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = folder.with_name("link")
    link.symlink_to(folder)
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(link))
    assert disk_cache.load(KEY, "so") is not None
    folder.chmod(0o777)
    ignored_with_one_warning("others may write it")


@pytest.mark.parametrize("suffix", ["so", "json"])
@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_an_entry_that_others_may_write_is_replaced(folder: Path, suffix: str, mode: int) -> None:
    (folder / f"{KEY}.{suffix}").chmod(mode)
    ignored_with_one_warning(f"{KEY}.{suffix} .* is not used, since others may write it")
    disk_cache.save(KEY, "so", b"code", {})
    assert disk_cache.load(KEY, "so") == (b"code", {})


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize("suffix", ["so", "json"])
def test_an_entry_of_another_user_is_replaced(folder: Path, suffix: str) -> None:
    os.chown(folder / f"{KEY}.{suffix}", 12345, -1)
    ignored_with_one_warning("is not used, since it belongs to user 12345")
    disk_cache.save(KEY, "so", b"code", {})
    assert disk_cache.load(KEY, "so") == (b"code", {})


def test_the_file_that_is_checked_is_the_file_that_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file under the name, after the check, is not what is read."""
    fstat = os.fstat

    def swapped(handle: int) -> os.stat_result:
        facts = fstat(handle)
        (folder / f"{KEY}.so").unlink(missing_ok=True)
        (folder / f"{KEY}.so").write_bytes(b"evil")
        return facts

    with own_files.opened(folder) as handle:
        assert handle is not None
        monkeypatch.setattr(os, "fstat", swapped)
        assert own_files.read(handle, folder, f"{KEY}.so") == b"code"


@pytest.mark.parametrize("suffix", ["so", "json"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "dangling", "device"])
def test_what_is_no_file_is_absent(folder: Path, suffix: str, kind: str) -> None:
    path = folder / f"{KEY}.{suffix}"
    kept = path.rename(folder / "kept")
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(kept)
        case "dangling":
            path.symlink_to("nothing")
        case "device":
            path.symlink_to("/dev/zero")
    assert disk_cache.load(KEY, "so") is None
    disk_cache.save(KEY, "so", b"new", {})
    assert kind == "folder" or disk_cache.load(KEY, "so") == (b"new", {})


def test_an_entry_holds_for_its_key_and_kind_of_code_alone(folder: Path) -> None:
    for suffix in ("so", "json"):
        (folder / f"{OTHER}.{suffix}").write_bytes((folder / f"{KEY}.{suffix}").read_bytes())
    (folder / f"{KEY}.o").write_bytes(b"code")
    assert disk_cache.load(OTHER, "so") is None
    assert disk_cache.load(KEY, "o") is None


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 100_000, "{}", "[1]", "1", "null", '{"fields": {}}', "\ud800", ""])
def test_facts_that_are_none_are_absent(folder: Path, text: str) -> None:
    (folder / f"{KEY}.json").write_text(text, errors="surrogatepass")
    assert disk_cache.load(KEY, "so") is None


@pytest.mark.parametrize("changed", [{"fields": {"x": 2}}, {"key": OTHER}, {"sha256": "0"}, {"sha256": None}, {"fields": None}])
def test_changed_facts_are_absent(folder: Path, changed: dict[str, object]) -> None:
    path = folder / f"{KEY}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    assert disk_cache.load(KEY, "so") is None


def test_a_full_disk_leaves_nothing(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        disk_cache.save(OTHER, "so", b"x" * 5000, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name for path in folder.iterdir()} == names


def test_what_died_half_written_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "_SWEPT", set())
    names = [f".{KEY}.so.{number}{own_files._PARTIAL}" for number in range(2)]
    for name, age in zip(names, (2 * own_files._STALE, 0), strict=True):
        (folder / name).write_bytes(b"half")
        os.utime(folder / name, (time.time() - age, time.time() - age))
    disk_cache.save(OTHER, "so", b"", {})
    assert [(folder / name).exists() for name in names] == [False, True]


def test_writers_and_readers_at_once(folder: Path) -> None:
    """Readers find an entry whole, of one writer or of the other, or none."""
    script = f"""
from attn_mlir.backends import disk_cache
for number in range(150):
    disk_cache.save({KEY!r}, "so", b"%d" % number * 3000, {{"x": number}})
"""
    wrong: list[object] = []
    end = threading.Event()

    def look() -> None:
        while not end.is_set():
            found = disk_cache.load(KEY, "so")
            if found is not None and found[0] not in (b"code", b"%d" % found[1]["x"] * 3000):
                wrong.append(found)

    reader = threading.Thread(target=look)
    reader.start()
    writers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    end.set()
    reader.join()
    assert not wrong
    disk_cache.save(KEY, "so", b"last", {})
    assert sorted(path.name for path in folder.iterdir()) == [f"{KEY}.json", f"{KEY}.so"]


@pytest.mark.parametrize("word", ["off", "OFF", " Off", "0", "none", "None", "false", "no"])
def test_words_that_turn_it_off(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CACHE", word)
    assert disk_cache.directory() is None


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ATTN_MLIR_CACHE", "~/kernels")
    assert disk_cache.directory() == tmp_path / "kernels"
    monkeypatch.setenv("ATTN_MLIR_CACHE", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert disk_cache.directory() == tmp_path / "xdg" / "attn-mlir"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification has ignored
    assert disk_cache.directory() == tmp_path / ".cache" / "attn-mlir"
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert disk_cache.directory() is None


def used(path: Path | str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks for an entry at this path and writes one, twice."""
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(path))
    for _ in range(2):
        assert disk_cache.load(KEY, "so") is None
        disk_cache.save(KEY, "so", b"code", {})


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("file", "Not a directory|File exists"),
        ("file/below", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("loop", "symbolic links"),
    ],
)
def test_a_path_that_is_no_folder_is_told_once(folder: Path, monkeypatch: pytest.MonkeyPatch, place: str, why: str) -> None:
    (folder / "file").write_text("")
    (folder / "loop").symlink_to(folder / "loop")
    path = folder / place
    with pytest.warns(RuntimeWarning, match=f"{path} can't be used .*({why}).*ATTN_MLIR_CACHE") as told:
        used(path, monkeypatch)
    assert len(told) == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
@pytest.mark.parametrize("call", ["open", "mkdir"])
def test_a_folder_without_permission_is_told_once(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str) -> None:
    """Where files can't be made in it, and where it can't be made itself."""
    usual = getattr(os, call)

    def refused(path: str, *arguments: Any, **options: Any) -> Any:
        if call == "mkdir" or (options.get("dir_fd") is not None and arguments[0] & os.O_CREAT):
            raise OSError(number, os.strerror(number), path)
        return usual(path, *arguments, **options)

    path = folder / "new" if call == "mkdir" else folder
    monkeypatch.setattr(os, call, refused)
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(path))
    with pytest.warns(RuntimeWarning, match=f"{path} can't be used .{os.strerror(number)}."):
        disk_cache.save(OTHER, "so", b"code", {})
    disk_cache.save(OTHER, "so", b"code", {})  # a warning would be an error here


def test_the_home_of_nobody_is_told_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(RuntimeWarning, match="~no-such-user/x can't be used .*home directory") as told:
        used("~no-such-user/x", monkeypatch)
    assert len(told) == 1


def test_calls_work_beside_an_unusable_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    text = (
        "import torch, attn_mlir; q = torch.randn(1, 1, 4, 8)\n"
        "a = attn_mlir.attention(q, q, q); torch.testing.assert_close(a, torch.nn.functional.scaled_dot_product_attention(q, q, q))"
    )
    environment = {**os.environ, "ATTN_MLIR_CACHE": str(tmp_path / "file")}
    made = run_python("-c", text, env=environment, check=True)
    assert made.stderr.count("can't be used") == 1
