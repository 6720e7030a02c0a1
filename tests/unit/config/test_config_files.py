"""A configuration of several files: all `*.toml` of a directory form one document."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.config import Settings, load_settings
from monitor.config.config_files import ConfigFile, content_digest, read_config_files
from monitor.errors import ConfigError, ConfigErrors, UsageError


def experiment(name: str, further: str = "") -> str:
    """Return the table of an experiment."""
    return f'[[experiments]]\nname = "{name}"\ncontrol = "a"\nvariants = {{ a = 0.5, b = 0.5 }}\n{further}'


def load(directory: Path, **texts: str) -> Settings:
    """Return the settings of files with these names and texts."""
    for name, text in texts.items():
        (directory / f"{name}.toml").write_text(text)
    return load_settings(directory, {})


class TestDirectory:
    """Which files belong to the configuration."""

    def test_sections_and_experiments_may_be_spread_over_files(self, tmp_path: Path) -> None:
        """Experiments are in the order of the files' names; a section may be in several files with other keys."""
        settings = load(
            tmp_path,
            c=experiment("third") + experiment("fourth"),
            a='[kafka]\nstart = "latest"\n',
            b=experiment("second") + "[kafka]\nmax_poll_records = 7\n",
        )
        assert [experiment.name for experiment in settings.experiments] == ["second", "third", "fourth"]
        assert (settings.kafka.start, settings.kafka.max_poll_records) == ("latest", 7)

    def test_hidden_files_and_other_names_are_ignored(self, tmp_path: Path) -> None:
        """Kubernetes keeps its versions in hidden directories; editors leave hidden and backup files."""
        (tmp_path / "..data.toml").mkdir()
        for name in (".hidden.toml", "config.toml~", "notes.txt"):
            (tmp_path / name).write_text("not TOML")
        assert len(load(tmp_path, config=experiment("ranker")).experiments) == 1

    def test_links_are_followed(self, tmp_path: Path) -> None:
        """All files of a mounted ConfigMap are links."""
        version = tmp_path / "..version"
        version.mkdir()
        (version / "config.toml").write_text(experiment("ranker"))
        (tmp_path / "..data").symlink_to("..version")
        (tmp_path / "config.toml").symlink_to("..data/config.toml")
        assert len(load_settings(tmp_path, {}).experiments) == 1

    def test_a_variable_overrides_an_experiment_by_its_number_over_all_files(self, tmp_path: Path) -> None:
        """As in one file."""
        load(tmp_path, a=experiment("first"), b=experiment("second"))
        settings = load_settings(tmp_path, {"ABMONITOR_EXPERIMENTS_1_MDE": "0.5"})
        assert [experiment.decision.mde for experiment in settings.experiments] == [None, 0.5]


class TestErrors:
    """Errors have the name of the file and the line in this file."""

    def test_an_error_has_its_file_and_line(self, tmp_path: Path) -> None:
        """Errors are in the order of files and lines."""
        with pytest.raises(ConfigErrors) as caught:
            load(
                tmp_path,
                a=experiment("first", "alpha = 9\n"),
                b='[kafka]\nstart = "never"\n' + experiment("second", "novelty = 1\n"),
                c="[limits]\nmax_items = 0\n",
            )
        places = [str(error).rpartition(" (")[2] for error in caught.value.errors]
        assert places == ["line 5 of a.toml)", "line 2 of b.toml)", "line 7 of b.toml)", "line 2 of c.toml)"]

    def test_the_same_experiment_in_two_files_is_an_error_that_names_both(self, tmp_path: Path) -> None:
        """With the lines of both names."""
        with pytest.raises(ConfigError) as caught:
            load(tmp_path, a=experiment("first"), b=experiment("second") + experiment("first"))
        assert str(caught.value) == (
            'experiments[2].name: got "first", expected every name once (line 6 of b.toml); '
            "experiments[0].name in line 2 of a.toml is the same"
        )

    @pytest.mark.parametrize(
        ("first", "second", "message"),
        [
            (
                '[kafka]\nstart = "latest"\n',
                '\n[kafka]\nstart = "latest"\n',
                "kafka.start: set in line 2 of b.toml and line 3 of c.toml; keep one of them",
            ),
            ("kafka = 3\n", "[kafka]\n", "kafka: set in line 1 of b.toml and line 1 of c.toml; keep one of them"),
            (
                '[http]\ntoken = "a secret of ours"\n',
                '[http]\ntoken = "a secret of ours"\n',
                "http.token: set in line 2 of b.toml and line 2 of c.toml; keep one of them",
            ),
            ("[experiments]\nmde = 1\n", "", "experiments: set in a.toml and line 1 of b.toml; keep one of them"),
        ],
    )
    def test_a_key_in_two_files_is_an_error_that_names_both(
        self, tmp_path: Path, first: str, second: str, message: str
    ) -> None:
        """Even if the values are equal. Values are not printed, because they may be secrets."""
        with pytest.raises(UsageError) as caught:
            load(tmp_path, a=experiment("ranker"), b=first, c=second)
        assert message in str(caught.value)
        assert "a secret of ours" not in str(caught.value)

    def test_an_error_of_the_syntax_names_the_file(self, tmp_path: Path) -> None:
        """The other files are valid."""
        with pytest.raises(UsageError, match=r"b\.toml: this is not TOML: .*line 1"):
            load(tmp_path, a=experiment("ranker"), b="kafka: {}")

    def test_an_empty_directory_is_an_error(self, tmp_path: Path) -> None:
        """Files of other names do not count."""
        (tmp_path / "config.yaml").write_text("")
        with pytest.raises(UsageError, match=r"the directory has no file \*\.toml"):
            load_settings(tmp_path, {})

    @pytest.mark.parametrize("create", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
    def test_a_name_in_toml_that_is_no_file_is_an_error(self, tmp_path: Path, create: Callable[[Path], None]) -> None:
        """A pipe would block the reader, and a missing file would be a part of the configuration that is ignored."""
        create(tmp_path / "b.toml")
        with pytest.raises(UsageError, match=r"b\.toml: "):
            load(tmp_path, a=experiment("ranker"))


class TestReading:
    """Files that change while they are read."""

    def test_files_that_change_during_a_reading_are_read_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process replaces both files after the first of them was read: both are new in the result."""
        for name in ("a", "b"):
            (tmp_path / f"{name}.toml").write_text("old")
        read_bytes, read_names = Path.read_bytes, list[str]()

        def read_and_replace(path: Path) -> bytes:
            content = read_bytes(path)
            read_names.append(path.name)
            if len(read_names) == 1:
                for name in ("a", "b"):
                    (tmp_path / f"{name}.toml").write_text("new")
            return content

        monkeypatch.setattr(Path, "read_bytes", read_and_replace)
        assert [file.content for file in read_config_files(tmp_path)] == [b"new", b"new"]

    def test_files_that_change_during_each_reading_are_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Instead of a loop without an end."""
        contents = (f"{number}".encode() for number in range(1000))
        monkeypatch.setattr(Path, "read_bytes", lambda _path: next(contents))
        with pytest.raises(UsageError, match="changed during each of 10 readings"):
            read_config_files(tmp_path / "config.toml")

    def test_a_pipe_is_read_once(self) -> None:
        """`--config <(command)` of a shell: a second reading would be empty."""
        reading_end, writing_end = os.pipe()
        with os.fdopen(writing_end, "wb") as pipe:
            pipe.write(experiment("ranker").encode())
        try:
            assert len(load_settings(Path(f"/dev/fd/{reading_end}"), {}).experiments) == 1
        finally:
            os.close(reading_end)


def test_the_digest_depends_on_names_and_contents() -> None:
    """And on nothing else, such as the directory or the time of a change."""
    file = ConfigFile(Path("/x/a.toml"), b"1")
    others = [
        (ConfigFile(Path("/x/a.toml"), b"2"),),
        (ConfigFile(Path("/x/b.toml"), b"1"),),
        (file, ConfigFile(Path("/x/b.toml"), b"")),
        (ConfigFile(Path("/x/a.tom"), b"l1"),),
    ]
    assert len({content_digest(files) for files in ((file,), *others)}) == 5
    assert content_digest((ConfigFile(Path("/y/a.toml"), b"1"),)) == content_digest((file,))
