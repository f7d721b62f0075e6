"""The browser that takes pictures: the one that was named, or the first that is found."""

import stat

import pytest

from zerolab.player import browser


def test_chromium_is_the_one_that_was_named_before_any_on_the_path(tmp_path, monkeypatch):
    named, found = tmp_path / "mine", tmp_path / "google-chrome"
    for path in (named, found):
        path.touch(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ZEROLAB_CHROMIUM", raising=False)
    assert browser.find_chromium() == found
    monkeypatch.setenv("ZEROLAB_CHROMIUM", str(named))
    assert browser.find_chromium() == named


def test_a_named_chromium_that_is_not_there_is_an_error_and_no_guess(monkeypatch):
    monkeypatch.setenv("ZEROLAB_CHROMIUM", "/nowhere/chromium")
    with pytest.raises(FileNotFoundError, match="ZEROLAB_CHROMIUM is '/nowhere/chromium', which is no file"):
        browser.find_chromium()


def test_a_chromium_without_windows_is_taken_before_one_that_has_them(tmp_path, monkeypatch):
    for name in ("chromium", "chromium-headless-shell"):
        (tmp_path / name).touch(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ZEROLAB_CHROMIUM", raising=False)
    assert browser.find_chromium().name == "chromium-headless-shell"
