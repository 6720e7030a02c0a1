"""Reloading of a changed configuration: what is applied, what is rejected, what is logged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.config import (
    HttpSettings,
    KafkaSettings,
    LimitSettings,
    ReloadResult,
    Settings,
    config_watcher,
    load_settings,
)
from monitor.config.config_files import read_config_files
from monitor.config.config_watcher import POLL_INTERVAL_S, SETTLING_S, ConfigWatcher, changed_setting_names
from monitor.errors import UnusableStore

KEPT = '[[experiments]]\nname = "kept"\ncontrol = "a"\nvariants = { a = 0.5, b = 0.5 }\n'
ADDED = KEPT.replace("kept", "added")


class Service:
    """A service with a watched configuration, whose experiments are recorded instead of applied."""

    def __init__(self, path: Path, environ: Mapping[str, str] | None = None) -> None:
        self.applied: list[Settings] = []
        self.results: list[ReloadResult] = []
        self.apply_error: UnusableStore | None = None
        self.initial = load_settings(path, environ or {})
        self.watcher = ConfigWatcher(path, environ or {}, self.initial, self._apply, self.results.append)
        self.poll_until_settled()

    def _apply(self, settings: Settings) -> None:
        if self.apply_error is not None:
            raise self.apply_error
        self.applied.append(settings)

    def poll_until_settled(self) -> None:
        """Poll until there is nothing that the watcher would soon read again."""
        while self.watcher.poll() == SETTLING_S:
            pass

    @property
    def applied_names(self) -> list[list[str]]:
        """Names of the experiments of each applied configuration."""
        return [[experiment.name for experiment in settings.experiments] for settings in self.applied]

    @property
    def successes(self) -> list[bool]:
        """Whether each reload was successful."""
        return [result.is_successful for result in self.results]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file with one experiment."""
    file = tmp_path / "config.toml"
    file.write_text(KEPT)
    return file


class TestPolling:
    """The content decides."""

    def test_unchanged_content_is_not_applied(self, path: Path) -> None:
        """Nor is a file that was written again with the same content."""
        service = Service(path)
        path.write_text(KEPT)
        assert service.watcher.poll() == POLL_INTERVAL_S
        assert service.applied == []

    def test_new_experiments_are_applied_once(self, path: Path) -> None:
        """With the settings of the running service."""
        service = Service(path)
        path.write_text(KEPT + ADDED)
        service.poll_until_settled()
        service.poll_until_settled()
        assert service.applied_names == [["kept", "added"]]

    def test_removed_experiments_are_applied(self, path: Path) -> None:
        """A removal is a change, too."""
        path.write_text(KEPT + ADDED)
        service = Service(path)
        path.write_text(KEPT)
        service.poll_until_settled()
        assert service.applied_names == [["kept"]]

    def test_a_change_between_loading_and_watching_is_applied(self, path: Path) -> None:
        """The first poll compares experiments, because nobody has the digest of the content that was loaded."""
        initial = load_settings(path, {})
        path.write_text(KEPT + ADDED)
        applied: list[Settings] = []
        watcher = ConfigWatcher(path, {}, initial, applied.append, lambda _result: None)
        while watcher.poll() == SETTLING_S:
            pass
        assert len(applied) == 1

    def test_content_that_still_changes_is_not_loaded(self, path: Path) -> None:
        """Half of a directory that is being copied may be a valid configuration."""
        service = Service(path)
        path.write_text(KEPT + ADDED)
        assert service.watcher.poll() == SETTLING_S
        path.write_text(KEPT + ADDED + KEPT.replace("kept", "last"))
        assert service.watcher.poll() == SETTLING_S
        assert service.applied == []
        assert service.watcher.poll() == POLL_INTERVAL_S
        assert service.applied_names == [["kept", "added", "last"]]

    def test_a_changed_comment_applies_nothing(self, path: Path) -> None:
        """The experiments are the same."""
        service = Service(path)
        path.write_text(f"# a comment\n{KEPT}")
        service.poll_until_settled()
        assert service.applied == []
        assert service.results[-1].text.startswith("unchanged: configuration ")

    def test_a_changed_catalogue_is_applied(self, path: Path) -> None:
        """Files with contents of experiments belong to the configuration."""
        catalogue = path.with_name("items.txt")
        catalogue.write_text("one\n")
        path.write_text(f'{KEPT}items = {{ horizon = "1d", catalogue = "{catalogue}" }}\n')
        service = Service(path)
        catalogue.write_text("one\ntwo\n")
        service.poll_until_settled()
        (settings,) = service.applied
        items = settings.experiments[0].items
        assert items is not None
        assert items.catalogue == frozenset({"one", "two"})

    def test_variables_of_the_environment_still_override_the_file(self, path: Path) -> None:
        """The environment is that of the start."""
        service = Service(path, {"ABMONITOR_EXPERIMENTS_0_MDE": "0.5"})
        path.write_text(KEPT + ADDED)
        service.poll_until_settled()
        assert [experiment.decision.mde for experiment in service.applied[0].experiments] == [0.5, None]


class TestConfigMap:
    """The way in which Kubernetes updates a mounted ConfigMap: one link is replaced, all files are links through it."""

    @staticmethod
    def write_version(directory: Path, name: str, text: str) -> None:
        """Write a version, and replace the link to the current version."""
        version = directory / f"..{name}"
        version.mkdir()
        (version / "config.toml").write_text(text)
        new_link = directory / "..data_tmp"
        new_link.symlink_to(version.name)
        new_link.replace(directory / "..data")

    @pytest.mark.parametrize("watches_directory", [False, True])
    def test_a_version_with_new_content_is_applied_once_and_with_the_same_content_never(
        self, tmp_path: Path, *, watches_directory: bool
    ) -> None:
        """Kubelet also replaces the link when only metadata has changed."""
        self.write_version(tmp_path, "1", KEPT)
        (tmp_path / "config.toml").symlink_to("..data/config.toml")
        service = Service(tmp_path if watches_directory else tmp_path / "config.toml")
        self.write_version(tmp_path, "2", KEPT)
        service.poll_until_settled()
        assert service.applied == []
        self.write_version(tmp_path, "3", KEPT + ADDED)
        service.poll_until_settled()
        self.write_version(tmp_path, "4", KEPT + ADDED)
        service.poll_until_settled()
        assert service.applied_names == [["kept", "added"]]


class TestInvalidConfiguration:
    """The running configuration stays in force."""

    @pytest.mark.parametrize("name", ['"\\u0000"', "[[1]]", '"/"', '"/nowhere"'])
    def test_an_impossible_name_of_a_catalogue_is_a_failure_at_each_poll(self, path: Path, name: str) -> None:
        """The message names the key."""
        service = Service(path)
        path.write_text(f'{KEPT}items = {{ horizon = "1d", catalogue = {name} }}\n')
        service.poll_until_settled()
        assert service.results[-1].text.startswith("experiments.kept.items.catalogue: got ")
        service.poll_until_settled()
        assert service.successes[-2:] == [False, False]

    def test_an_invalid_file_is_rejected_and_a_valid_one_applied(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The problem is logged once, in one line, but each poll tries again."""
        service = Service(path)
        path.write_text(f"{KEPT}alpha = 9\nnovelty = 1\n")
        for _ in range(3):
            service.poll_until_settled()
        assert service.successes == [True, False, False, False]
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "experiments.kept.alpha: got 9" in record.getMessage()
        assert "\n" not in record.getMessage()
        path.write_text(KEPT + ADDED)
        service.poll_until_settled()
        assert service.applied_names == [["kept", "added"]]
        assert service.successes[-1]

    def test_another_problem_is_logged_again(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The file was edited."""
        service = Service(path)
        for text in ("alpha = 9", "alpha = 8"):
            path.write_text(f"{KEPT}{text}\n")
            service.poll_until_settled()
        assert [record.levelno for record in caplog.records].count(logging.ERROR) == 2

    def test_secrets_in_a_file_are_not_logged(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """A file with a secret is invalid; the log has the key."""
        service = Service(path)
        path.write_text(f'{KEPT}[http]\ntoken = "a secret of ours"\n[store]\npasswrod = "a secret of ours"\n')
        service.poll_until_settled()
        assert "http.token" in caplog.text
        assert "a secret of ours" not in caplog.text

    def test_a_missing_file_is_an_invalid_configuration(self, path: Path) -> None:
        """If the same file is back, nothing is applied, and the failure is over."""
        service = Service(path)
        path.unlink()
        service.poll_until_settled()
        assert service.successes == [True, False]
        assert "cannot be read: No such file or directory" in service.results[-1].text
        path.write_text(KEPT)
        service.poll_until_settled()
        assert service.successes[-2:] == [False, True]
        assert service.applied == []

    def test_a_file_that_is_missing_for_a_moment_is_no_failure(self, path: Path) -> None:
        """It is replaced at this moment."""
        service = Service(path)
        path.unlink()
        assert service.watcher.poll() == SETTLING_S
        path.write_text(KEPT)
        service.poll_until_settled()
        assert all(service.successes)

    def test_an_error_of_the_application_is_a_failure_that_is_tried_again(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Such as a store out of reach, or a conflict between files."""
        service = Service(path)
        service.apply_error = UnusableStore("this file conflicts with that of worker m-2")
        path.write_text(KEPT + ADDED)
        service.poll_until_settled()
        service.poll_until_settled()
        assert service.successes[1:] == [False, False]
        assert caplog.text.count("conflicts with that of worker m-2") == 1
        service.apply_error = None
        service.poll_until_settled()
        assert service.applied_names == [["kept", "added"]]

    def test_a_defect_is_a_failure_and_does_not_end_the_watching(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The log has the traceback, once."""
        service = Service(path)
        with monkeypatch.context() as patch:
            patch.setattr(config_watcher, "parse_config_files", lambda *_: 1 / 0)
            for _ in range(2):
                assert service.watcher.reload().text == "ZeroDivisionError: the log has the cause"
        assert caplog.text.count("Traceback") == 1
        assert service.watcher.reload().is_successful


class TestRestart:
    """Settings that take effect after a restart only."""

    def test_other_settings_are_named_once_and_not_applied(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """The applied settings have the experiments of the file, and the other settings of the running service."""
        service = Service(path)
        other = '[kafka]\ngroup_id = "another-group"\n[limits]\nmax_clock_skew = "1m"\n'
        path.write_text(KEPT + ADDED + other)
        service.poll_until_settled()
        path.write_text(KEPT + other)
        service.poll_until_settled()
        (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert record.getMessage().endswith("settings=kafka.group_id, limits.max_clock_skew")
        assert "another-group" not in caplog.text
        assert service.applied_names == [["kept", "added"], ["kept"]]
        assert all(settings.kafka == service.initial.kafka for settings in service.applied)
        assert service.results[-1].text.endswith("after a restart: kafka.group_id, limits.max_clock_skew")

    def test_changed_settings_are_compared_by_section_and_key(self) -> None:
        """Experiments do not count; a secret counts by its name."""
        old = Settings((), http=HttpSettings(token="0123456789abcdef"))
        new = replace(
            old,
            kafka=KafkaSettings(group_id="other", start="latest"),
            http=HttpSettings(token="fedcba9876543210"),
            limits=LimitSettings(max_clock_skew_ms=1),
        )
        assert changed_setting_names(old, new) == (
            "kafka.group_id",
            "kafka.start",
            "http.token",
            "limits.max_clock_skew",
        )
        assert changed_setting_names(old, old) == ()


class TestRequests:
    """Requests to reload: a signal, or an HTTP request."""

    def test_a_request_reloads_at_once_and_returns_the_result(self, path: Path) -> None:
        """Without waiting for the next poll."""
        service = Service(path)
        service.watcher.start()
        try:
            assert service.watcher.request_reload_result().text.startswith("unchanged: configuration ")
            path.write_text(KEPT + ADDED)
            assert service.watcher.request_reload_result().text.startswith("reloaded: configuration ")
            path.write_text("nonsense")
            result = service.watcher.request_reload_result()
            assert (result.is_successful, "this is not TOML" in result.text) == (False, True)
        finally:
            service.watcher.stop()
        assert service.applied_names == [["kept", "added"]]

    def test_a_signal_reloads_once_the_watcher_is_started(self, path: Path) -> None:
        """A signal during the start of the service is not lost."""
        service = Service(path)
        path.write_text(KEPT + ADDED)
        service.watcher.request_reload()
        service.watcher.start()
        assert service.watcher.request_reload_result().text.startswith("unchanged: ")
        service.watcher.stop()
        assert service.applied_names == [["kept", "added"]]

    def test_a_hanging_read_is_reported_and_does_not_prevent_the_end(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As of a file on a network that is down."""
        service = Service(path)
        files, is_back = read_config_files(path), threading.Event()
        monkeypatch.setattr(config_watcher, "read_config_files", lambda _path: files if is_back.wait() else ())
        monkeypatch.setattr(config_watcher, "_REPLY_TIMEOUT_S", 0.01)
        monkeypatch.setattr(config_watcher, "_STOP_TIMEOUT_S", 0.01)
        service.watcher.start()
        result = service.watcher.request_reload_result()
        assert (result.is_successful, result.text[:28]) == (False, "the reload has not ended wit")
        assert service.successes[-1] is False
        assert "configuration not read yet" in caplog.text
        service.watcher.stop()
        is_back.set()
        service.watcher._thread.join()

    def test_a_pipe_cannot_be_reloaded(self, path: Path) -> None:
        """Its content was read at the start. The response names the reason, and polls do not report a failure."""
        service = Service(path)
        watcher = ConfigWatcher(Path("/dev/null"), {}, service.initial, service.applied.append, service.results.append)
        result_count = len(service.results)
        assert watcher.poll() == POLL_INTERVAL_S
        assert len(service.results) == result_count
        assert "neither a file nor a directory" in watcher.reload().text
