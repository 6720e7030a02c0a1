"""Loading of settings: defaults, overrides by environment variables, and the message for each wrong setting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from monitor.config import (
    AllocationSettings,
    DecisionSettings,
    DiscoverSettings,
    GuardrailSettings,
    Settings,
    aggregate_definitions,
    definition_differences,
    experiment_warnings,
    load_settings,
)
from monitor.config.experiment_tables import _KEYS
from monitor.errors import ConfigError, ConfigErrors, UsageError

GOOD = """
[[experiments]]
name = "ranker"
control = "a"
variants = { a = 0.5, b = 0.5 }
"""


def _load(tmp_path: Path, text: str, **environ: str) -> Settings:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load_settings(path, environ)


class TestDefaults:
    """All keys except name, control and variants have defaults."""

    def test_a_minimal_file_gets_the_documented_defaults(self, tmp_path: Path) -> None:
        """Defaults of an experiment's keys equal the defaults in docs/configuration.md."""
        (experiment,) = _load(tmp_path, GOOD).experiments
        assert [metric.name for metric in experiment.metrics] == ["dcg@5", "ndcg@5", "success@5"]
        assert experiment.primary == "dcg@5"
        assert experiment.grades == {"rating": "score"}
        assert [decay.name for decay in experiment.decay] == ["1h", "24h"]
        assert (experiment.feedback_window_ms, experiment.retention_ms) == (86_400_000, 30 * 86_400_000)
        assert _load(tmp_path, GOOD).kafka.max_poll_records == 4000

    def test_patterns_of_names_are_one_text_or_a_list_and_commas_separate_them_in_a_variable(
        self, tmp_path: Path
    ) -> None:
        """By default, every name is recorded, and no experiment is adopted automatically."""
        defaults = _load(tmp_path, GOOD).discover
        assert (defaults.names, defaults.limit, defaults.auto_adopt, defaults.auto_adopt_limit) == (("*",), 100, (), 10)
        assert _load(tmp_path, _section('[discover]\nnames = "a,*"')).discover.names == ("a,*",)
        assert _load(tmp_path, _section('[discover]\nnames = ["a*", "b"]')).discover.names == ("a*", "b")
        assert _load(tmp_path, _section("[discover]\nnames = []")).discover.names == ()
        assert _load(tmp_path, GOOD, ABMONITOR_DISCOVER_AUTO_ADOPT="a*,b").discover.auto_adopt == ("a*", "b")

    @pytest.mark.parametrize(
        ("patterns", "name", "is_recorded"),
        [
            (("*",), "any name", True),
            (("ranker-*",), "ranker-v2", True),
            (("ranker-*",), "Ranker-v2", False),
            (("ranker-?", "x"), "ranker-10", False),
            (("ranker-[12]", "x"), "ranker-2", True),
            (("y", "x"), "x", True),
            ((), "x", False),
        ],
    )
    def test_a_name_has_to_match_one_of_the_shell_patterns(
        self, patterns: tuple[str, ...], name: str, *, is_recorded: bool
    ) -> None:
        """With case, and as a whole."""
        assert DiscoverSettings(names=patterns).records(name) == is_recorded
        assert DiscoverSettings(auto_adopt=patterns).adopts(name) == is_recorded

    def test_an_experiment_without_ranking_metrics_needs_no_grades(self, tmp_path: Path) -> None:
        """A chatbot with thumbs on answers has no graded items."""
        settings = _load(tmp_path, GOOD + 'metrics = ["share:thumb_up", "latency_ms"]')
        assert settings.experiments[0].grades == {}
        assert settings.experiments[0].feedback_kinds == {"thumb_up"}

    def test_every_key_is_documented(self) -> None:
        """docs/configuration.md names every key of every section."""
        text = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
        settings = Settings(())
        for section in ("kafka", "store", "http", "limits", "display", "discover"):
            for name in getattr(settings, section).__dataclass_fields__:
                assert f"`{name.removesuffix('_ms')}`" in text, f"{section}.{name}"
        for name in _KEYS:
            assert f"`{name}`" in text, f"experiments.{name}"


class TestEnvironment:
    """Environment variables override the file; secrets are variables or files that variables name."""

    def test_variables_override_scalars_and_experiment_keys(self, tmp_path: Path) -> None:
        """A variable of a numeric key is parsed as a number, a variable of an experiment as TOML."""
        settings = _load(
            tmp_path,
            GOOD,
            ABMONITOR_HTTP_PORT="8000",
            ABMONITOR_STORE_SHARDS="4",
            ABMONITOR_KAFKA_BOOTSTRAP_SERVERS="a:1,b:2",
            ABMONITOR_EXPERIMENTS_0_GAIN="exp2",
            ABMONITOR_EXPERIMENTS_0_DECAY='["2h"]',
            ABMONITOR_LIMITS_MAX_CLOCK_SKEW="1m",
            PATH="/bin",
        )
        assert settings.http.port == 8000
        assert settings.store.shards == 4
        assert settings.kafka.bootstrap_servers == "a:1,b:2"
        assert settings.experiments[0].gain == "exp2"
        assert [decay.name for decay in settings.experiments[0].decay] == ["2h"]
        assert settings.limits.max_clock_skew_ms == 60_000

    def test_a_secret_is_read_from_a_file_and_missing_in_repr(self, tmp_path: Path) -> None:
        """The variable …_FILE names a file with the secret."""
        secret = tmp_path / "password"
        secret.write_text("hunter2\n")
        settings = _load(tmp_path, GOOD, ABMONITOR_STORE_PASSWORD_FILE=str(secret))
        assert settings.store.password == "hunter2"
        assert "hunter2" not in repr(settings)

    @pytest.mark.parametrize("token", ["fifteen-letters", "", "with a blank in it", "umlauts-äöü-umlauts"])
    def test_an_invalid_token_is_rejected_without_quoting_the_token(self, tmp_path: Path, token: str) -> None:
        """A token has at least sixteen visible ASCII characters."""
        with pytest.raises(ConfigError) as caught:
            _load(tmp_path, GOOD, ABMONITOR_HTTP_TOKEN=token)
        assert str(caught.value).startswith("ABMONITOR_HTTP_TOKEN: got ")
        assert not token or token not in str(caught.value)

    def test_a_token_is_read_from_a_file_without_the_line_end(self, tmp_path: Path) -> None:
        """The token is missing in the repr of the settings."""
        secret = tmp_path / "token"
        secret.write_text("0123456789abcdef\n")
        settings = _load(tmp_path, GOOD, ABMONITOR_HTTP_TOKEN_FILE=str(secret))
        assert settings.http.token == "0123456789abcdef"
        assert "0123456789abcdef" not in repr(settings)

    def test_a_drift_reference_with_an_undeclared_category_is_rejected(self, tmp_path: Path) -> None:
        """Undeclared categories are counted as "other", so such a reference would always differ from the counts."""
        reference = tmp_path / "reference.json"
        reference.write_text('{"fractions": 3, "algebra": 2, "other": 1}')
        text = _with(f"categories = ['fractions']\ndrift = {{ reference = '{reference}' }}")
        with pytest.raises(ConfigError, match=r'drift\.reference: .*got "algebra", expected one of .*fractions, other'):
            _load(tmp_path, text)

    def test_the_reference_of_items_is_a_file_or_a_number_of_days(self, tmp_path: Path) -> None:
        """The default is the number of days of the categories' reference, or seven; counts are whole numbers."""
        reference = tmp_path / "shown.json"
        reference.write_text('{"video-1": 3, "video-2": 0}')
        counted = tmp_path / "categories.json"
        counted.write_text('{"other": 1}')
        for drift_table, expected, days in (
            (f"{{ items_reference = '{reference}' }}", {"video-1": 3, "video-2": 0}, 7),
            ("{ reference = 3 }", 3, 3),
            ("{ reference = 3, items_reference = 9 }", 9, 9),
            (f"{{ reference = '{counted}' }}", 7, 7),
            (f"{{ reference = '{counted}', items_reference = '{reference}' }}", {"video-1": 3, "video-2": 0}, 0),
        ):
            drift = _load(tmp_path, _with(f"drift = {drift_table}")).experiments[0].drift
            assert (drift.items_reference, drift.reference_days) == (expected, days)
        reference.write_text('{"video-1": 2.5}')
        with pytest.raises(ConfigError, match=r"items_reference: .*video-1: got 2.5"):
            _load(tmp_path, _with(f"drift = {{ items_reference = '{reference}' }}"))
        reference.write_text('{"half \\ud800": 3}')
        with pytest.raises(ConfigError, match=r"items_reference: .*half .*expected a name in valid Unicode"):
            _load(tmp_path, _with(f"drift = {{ items_reference = '{reference}' }}"))

    def test_a_password_of_digits_stays_text(self, tmp_path: Path) -> None:
        """Secrets are never parsed."""
        assert _load(tmp_path, GOOD, ABMONITOR_STORE_PASSWORD="0123").store.password == "0123"

    @pytest.mark.parametrize("name", ["STORE_PASSWORD", "STORE_USER_HASH_KEY", "STORE_USERNAME", "KAFKA_GROUP_ID"])
    def test_a_variable_that_is_not_utf_8_is_rejected_without_quoting_the_value(
        self, tmp_path: Path, name: str
    ) -> None:
        """Python decodes such bytes to surrogates, which cannot be encoded again."""
        with pytest.raises(ConfigError, match=f'ABMONITOR_{name}: got "…", expected text in UTF-8'):
            _load(tmp_path, GOOD, **{f"ABMONITOR_{name}": b"hunter2\xff".decode("utf-8", "surrogateescape")})

    def test_a_secret_in_a_variable_and_in_a_file_is_rejected(self, tmp_path: Path) -> None:
        """The message names both variables, because neither takes precedence."""
        secret = tmp_path / "password"
        secret.write_text("hunter2\n")
        names = {"ABMONITOR_STORE_PASSWORD": "hunter3", "ABMONITOR_STORE_PASSWORD_FILE": str(secret)}
        with pytest.raises(ConfigError) as caught:
            _load(tmp_path, GOOD, **names)
        assert all(name in str(caught.value) for name in names)
        assert "hunter3" not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "redacted_url"),
        [
            ("redis:/:secretpw@h/0", "redis:/…@h/0"),
            ("redis:secretpw@h/0", "…@h/0"),
            ("secretpw@h/0", "…@h/0"),
            ("redis:///secretpw@h/0", "redis:///…@h/0"),
            ("redis://:secretpw@x@h:port/0", "redis://…@h:port/0"),
            ("redis://:secret/pw@h/0", "redis://…@h/0"),
            ("redis://h/0?password=secretpw", "redis://h/0?…"),
            ("redis://:secret,pw@h/0", "redis://…@h/0"),
            ("redis://:secret[pw@h/0", "redis://…@h/0"),
            ("redis://:secret?pw@h/0", "redis://…@h/0"),
            ("redis://:secret#pw@h/0", "redis://…@h/0"),
            ("redis+cluster://:secret,pw@h:1,b:2", "redis+cluster://…@h:1,b:2"),
        ],
    )
    def test_no_message_contains_the_password_of_an_address(self, tmp_path: Path, url: str, redacted_url: str) -> None:
        """The text before the last @ is left out, independent of the number of slashes."""
        with pytest.raises(ConfigError) as caught:
            _load(tmp_path, GOOD, ABMONITOR_STORE_URL=url)
        assert str(caught.value).startswith(f'store.url: got "{redacted_url}", expected ')
        assert "secret" not in str(caught.value)
        assert "pw" not in str(caught.value)

    @pytest.mark.parametrize("url", ["http://h", "https://h:8081/apis/ccompat/v7", "http://a:1, https://[::1]:2"])
    def test_every_form_of_registry_address_is_accepted(self, tmp_path: Path, url: str) -> None:
        """Several addresses are separated by commas; the password and the token are variables."""
        registry = _load(
            tmp_path,
            f"{GOOD}[schema_registry]\nurl = '{url}'\nusername = 'reader'",
            ABMONITOR_SCHEMA_REGISTRY_PASSWORD="hunter2",
        ).schema_registry
        assert (registry.url, registry.username, registry.password) == (url, "reader", "hunter2")
        assert "hunter2" not in repr(registry)

    def test_a_registry_has_one_kind_of_credentials(self, tmp_path: Path) -> None:
        """The error contains neither of them."""
        with pytest.raises(ConfigError, match=r"schema_registry\.token: got \"…\", expected no token"):
            _load(
                tmp_path,
                f"{GOOD}[schema_registry]\nurl = 'http://a'\nusername = 'reader'",
                ABMONITOR_SCHEMA_REGISTRY_PASSWORD="hunter2",
                ABMONITOR_SCHEMA_REGISTRY_TOKEN="abc",
            )

    @pytest.mark.parametrize(
        "url",
        [
            "redis://h",
            "redis://h:6379",
            "redis://:6379/0",
            "redis://[::1]:6379/2",
            "rediss://user:%2Cpw@h/",
            "redis+cluster://h",
            "redis+cluster://a:1,b:2",
            "rediss+cluster://user:pw@a:1,b:2/0",
            "unix:///run/valkey.sock",
            "unix://user:pw@/run/valkey.sock",
            "embedded:./store",
        ],
    )
    def test_every_form_of_store_address_is_accepted(self, tmp_path: Path, url: str) -> None:
        """User, port, path and further nodes are optional."""
        assert _load(tmp_path, GOOD, ABMONITOR_STORE_URL=url).store.url == url

    @pytest.mark.parametrize("text", ["9" * 5000, "0x" + "f" * 5000, "[" * 100_000, "{a=" * 100_000])
    def test_a_value_that_no_parser_accepts_is_rejected(self, tmp_path: Path, text: str) -> None:
        """Python and tomllib fail on integers of 5000 digits and on 100 000 levels of nesting."""
        for name in ("HTTP_PORT", "EXPERIMENTS_0_MAX_GRADE"):
            with pytest.raises(ConfigError, match=f"^ABMONITOR_{name}: got |^experiments.ranker.max_grade: got "):
                _load(tmp_path, GOOD, **{f"ABMONITOR_{name}": text})

    def test_the_message_for_an_unknown_key_does_not_contain_the_value(self, tmp_path: Path) -> None:
        """The key may be a misspelt password."""
        with pytest.raises(ConfigError, match="did you mean password") as caught:
            _load(tmp_path, _section("[store]\npasword = 'hunter2'"))
        assert "hunter2" not in str(caught.value)

    def test_an_unknown_variable_is_rejected_with_a_suggestion(self, tmp_path: Path) -> None:
        """A variable with the prefix must be the name of a key."""
        message = r"^environment: unknown variable ABMONITOR_HTTP_PROT; did you mean ABMONITOR_HTTP_PORT\?$"
        with pytest.raises(ConfigError, match=message):
            _load(tmp_path, GOOD, ABMONITOR_HTTP_PROT="1")


def _load_errors(tmp_path: Path, text: str) -> Sequence[ConfigError]:
    with pytest.raises((ConfigError, ConfigErrors)) as caught:
        _load(tmp_path, text)
    error = caught.value
    assert isinstance(error, (ConfigError, ConfigErrors))
    return error.errors if isinstance(error, ConfigErrors) else [error]


def _with(line: str) -> str:
    return GOOD + line + "\n"


def _section(line: str) -> str:
    return line + "\n" + GOOD


def _guardrail(lines: str) -> str:
    return GOOD + f"[[experiments.guardrails]]\n{lines}\n"


_FROM = "from = 2026-02-01T00:00:00Z"
_HALF = "shares = { a = 0.5, b = 0.5 }"
_RAIL = "metric = 'ndcg@5'\nharmful_direction = 'down'\nmargin = 0.1"

_LONG = "a" * 64
_BAD_URLS = [
    ("redis://h:abc/0", "redis://HOST:PORT"),
    ("redis://h:99999/0", "redis://HOST:PORT"),
    ("redis://h:0/0", "redis://HOST:PORT"),
    ("redis://[::1", "redis://HOST:PORT"),
    ("redis://[1]", "redis://HOST:PORT"),
    ("redis://a b", "redis://HOST:PORT"),
    ("redis://a:1,b:1", "redis://HOST:PORT"),
    (f"rediss://{_LONG}", "rediss://HOST:PORT"),
    ("redis+cluster://,", "redis+cluster://HOST:PORT,HOST:PORT"),
    ("redis+cluster://a:1,b", "redis+cluster://HOST:PORT,HOST:PORT"),
    ("redis+cluster://a:1,b:²", "redis+cluster://HOST:PORT,HOST:PORT"),
    ("redis://h#x/1", "an address without ?"),
    ("unix://x", "unix:///PATH"),
    ("unix://x/y", "unix:///PATH"),
    ("unix:///", "unix:///PATH"),
]


FAULTS = [
    ("", "experiments", "at least one"),
    (_section("[kafka]\nbootstrap_servers = 'nowhere'"), "kafka.bootstrap_servers", "HOST:PORT"),
    (_section("[kafka]\nfeedback_topic = 'chatbot.responses'"), "kafka.feedback_topic", "two topics"),
    (_section("[kafka]\nresponses_topic = 'a b'"), "kafka.responses_topic", "a topic name"),
    (_section("[kafka]\nstart = 'noon'"), "kafka.start", "earliest, latest"),
    (_section("[kafka]\nstart = 2026-01-01T00:00:00"), "kafka.start", "with an offset"),
    (_section("[kafka]\nstart = '1960-01-01T00:00:00Z'"), "kafka.start", "a time from 1970"),
    (_section("[kafka]\nstart = 1969-12-31T23:59:59Z"), "kafka.start", "a time from 1970"),
    (_section("[kafka]\nstart = '0001-01-01T00:00:00+23:59'"), "kafka.start", "a time from 1970"),
    (_section("[kafka]\nbootstrap_servers = 'a:²'"), "kafka.bootstrap_servers", "HOST:PORT"),
    (_section("[kafka]\nbootstrap_servers = 'a:9092²'"), "kafka.bootstrap_servers", "HOST:PORT"),
    (_section("[kafka]\nbootstrap_servers = 'a:٩'"), "kafka.bootstrap_servers", "HOST:PORT"),
    (_section(f"[kafka]\nbootstrap_servers = 'a:{'9' * 5000}'"), "kafka.bootstrap_servers", "HOST:PORT"),
    (_section(f"[kafka]\nbootstrap_servers = '{_LONG}:1'"), "kafka.bootstrap_servers", "HOST:PORT"),
    (_section("[kafka]\nmax_poll_records = 0"), "kafka.max_poll_records", "an integer from 1"),
    (_section("[kafka]\nmax_poll_records = 1000000000"), "kafka.max_poll_records", "an integer from 1 to 200000"),
    (_section("[kafka]\ngroup_id = ' '"), "kafka.group_id", "a string that is not blank"),
    ("[experiments]\nname = 'a'", "experiments", "in double brackets"),
    (_section("[kafka]\nsecurity_protocol = 'TLS'"), "kafka.security_protocol", "one of PLAINTEXT"),
    (
        _section("[kafka]\nsecurity_protocol = 'SASL_SSL'\nsasl_mechanism = 'PLAIN'\nsasl_username = 'x'"),
        "kafka.sasl_password",
        "a value, because",
    ),
    (_section("[kafka]\nsasl_mechanism = 'PLAIN'"), "kafka.sasl_mechanism", "SASL_SSL"),
    (_section("[kafka]\nssl_ca_file = '/nowhere/ca.pem'"), "kafka.ssl_ca_file", "a readable file"),
    (_section('[kafka]\nssl_ca_file = "a\\u0000b"'), "kafka.ssl_ca_file", "a readable file"),
    (_section("[kafka]\nsasl_username = 'x'"), "kafka.sasl_username", "SASL_SSL"),
    (
        _section(f"[kafka]\nssl_cert_file = '{__file__}'"),
        "kafka.ssl_cert_file",
        "no value unless security_protocol is SSL or SASL_SSL",
    ),
    (_section("[kafka]\nsasl_password = 'x'"), "kafka.sasl_password", "ABMONITOR_KAFKA_SASL_PASSWORD"),
    *(
        (_section(f"[schema_registry]\nurl = '{url}'"), "schema_registry.url", "http://HOST:PORT or https://HOST:PORT")
        for url in (
            "registry:8081",
            "ftp://a",
            "http://",
            "https:///path",
            "http://a:x",
            "http://a?b",
            "http://a,",
            "a,http://b",
        )
    ),
    (_section("[schema_registry]\nurl = 'http://u:secret@a'"), "schema_registry.url", "SCHEMA_REGISTRY_PASSWORD"),
    (_section("[schema_registry]\nurl = 'http://a'\nusername = 'u:v'"), "schema_registry.username", "without a colon"),
    (_section("[schema_registry]\nurl = 'http://a'\nusername = 'u'"), "schema_registry.password", "REGISTRY_PASSWORD"),
    (_section("[schema_registry]\nusername = 'u'"), "schema_registry.username", "unless schema_registry.url is set"),
    (_section("[schema_registry]\npassword = 'x'"), "schema_registry.password", "no secret in the file"),
    (_section("[schema_registry]\ntoken = 'x'"), "schema_registry.token", "no secret in the file"),
    (
        _section(f"[schema_registry]\nurl = 'http://a'\nssl_ca_file = '{__file__}'"),
        "schema_registry.ssl_ca_file",
        "no value unless schema_registry.url begins with https://",
    ),
    (
        _section(f"[schema_registry]\nurl = 'https://a'\nssl_cert_file = '{__file__}'"),
        "schema_registry.ssl_cert_file",
        "a value of schema_registry.ssl_key_file",
    ),
    (_section("[store]\nurl = 'http://a'"), "store.url", "redis://"),
    (_section("[store]\nurl = 'redis+cluster://a:7000/1'"), "store.url", "database 0 or none"),
    (_section("[store]\nurl = 'redis://a/main'"), "store.url", "the number of a database"),
    (_section("[store]\nurl = 'redis://a/-1'"), "store.url", "the number of a database"),
    (_section("[store]\nurl = 'redis://a?db=3'"), "store.url", "an address without ?"),
    *((_section(f"[store]\nurl = '{url}'"), "store.url", expected) for url, expected in _BAD_URLS),
    (_section('[store]\nurl = "embedded:a\\u0000b"'), "store.url", "redis://"),
    (
        _section(f"[store]\nssl_ca_file = '{__file__}'"),
        "store.ssl_ca_file",
        "no value unless store.url begins with rediss://",
    ),
    (
        _section(f"[store]\nssl_cert_file = '{__file__}'"),
        "store.ssl_cert_file",
        "no value unless store.url begins with rediss://",
    ),
    (
        _section(f"[store]\nurl = 'rediss://h'\nssl_cert_file = '{__file__}'"),
        "store.ssl_cert_file",
        "a value of store.ssl_key_file as well",
    ),
    (_section("[store]\nshards = 0"), "store.shards", "an integer from 1 to 256"),
    (_section("[store]\nurl = 'redis://:secret@a'"), "store.url", "ABMONITOR_STORE_PASSWORD"),
    (_section("[store]\nurl = 5"), "store.url", "a string that is not blank"),
    (_section("[http]\nport = 70000"), "http.port", "from 0 to 65535"),
    (_section(f"[http]\nhost = '{'a' * 300}'"), "http.host", "a host name or an IP address"),
    (_section(f"[http]\nhost = '{_LONG}.org'"), "http.host", "a host name or an IP address"),
    (_section('[http]\nhost = "a\\u0000b"'), "http.host", "a host name or an IP address"),
    (_section("[http]\nport = true"), "http.port", "an integer"),
    (_section("[http]\ntoken = 'x'"), "http.token", "ABMONITOR_HTTP_TOKEN"),
    (_section(f"[http]\ntls_cert_file = '{__file__}'"), "http.tls_cert_file", "a value of http.tls_key_file as well"),
    (_section(f"[http]\ntls_key_file = '{__file__}'"), "http.tls_key_file", "a value of http.tls_cert_file as well"),
    (
        _section(f"[http]\ntls_cert_file = '{__file__}'\ntls_key_file = '{__file__}'"),
        "http.tls_cert_file",
        "a PEM certificate",
    ),
    (_section("[limits]\nmax_rejected_share = 2"), "limits.max_rejected_share", "from 0 to 1"),
    (_section("[limits]\nmax_clock_skew = '5 minutes'"), "limits.max_clock_skew", "a duration"),
    (_section("[display]\nmin_display_students = -1"), "display.min_display_students", "an integer from 1"),
    (_section("[discover]\nnames = 'a '"), "discover.names", 'a pattern such as "ranker-*", or a list'),
    (_section("[discover]\nnames = ['a', 1]"), "discover.names", "1 to 100 printable characters"),
    (_section("[discover]\nauto_adopt = ''"), "discover.auto_adopt", "a pattern such as"),
    (_section("[discover]\nlimit = 0"), "discover.limit", "an integer from 1 to 1000"),
    (_section("[discover]\nauto_adopt_limit = 1001"), "discover.auto_adopt_limit", "an integer from 1 to 1000"),
    (GOOD + GOOD, "experiments[1].name", "every name once"),
    (GOOD.replace('name = "ranker"', 'name = " "'), "experiments[0].name", "printable"),
    (GOOD.replace('name = "ranker"', ""), "experiments[0].name", "a name"),
    (GOOD.replace('control = "a"', 'control = "c"'), "experiments.ranker.control", 'got "c", expected one of a, b'),
    (GOOD.replace("a = 0.5, b = 0.5", "a = 1.0"), "experiments.ranker.variants", "at least two variants"),
    (GOOD.replace("b = 0.5", "b = 0.4"), "experiments.ranker.variants", "sum to 1"),
    (GOOD.replace("a = 0.5, b = 0.5", "a = 0, b = 1"), "experiments.ranker.variants", "above 0 for the control"),
    (GOOD.replace("a = 0.5", "a = nan"), "experiments.ranker.variants.a", "a number from 0 to 1"),
    (_with("metrics = ['map@5']"), "experiments.ranker.metrics", "ndcg@k"),
    (_with("metrics = ['dcg@0']"), "experiments.ranker.metrics", "k from 1"),
    (_with("metrics = ['dcg@5', 'dcg@5']"), "experiments.ranker.metrics", "every metric once"),
    (_with("metrics = []"), "experiments.ranker.metrics", "a list of 1"),
    (_with("primary = 'rr@5'"), "experiments.ranker.primary", "one of dcg@5"),
    (_with("gain = 'exponential'"), "experiments.ranker.gain", "{ 0 = 0, 1 = 1, 2 = 3 }; did you mean exp2?"),
    (_with("grades = { helpful = true }"), "experiments.ranker.grades.helpful", 'got true, expected "score", a grade'),
    (
        _with("gain = 'log'"),
        "experiments.ranker.gain",
        "one of linear, exp2, or a table of gains by grade, such as { 0 = 0, 1 = 1, 2 = 3 }",
    ),
    (_with("gain = { 0 = 0, 1 = 1 }"), "experiments.ranker.gain", "a gain for the grade 4"),
    (_with("gain = { 0 = 1, 4 = 0 }"), "experiments.ranker.gain", "do not fall"),
    (_with('gain = { 4 = 3, "4.0" = 3 }'), "experiments.ranker.gain", "every grade once"),
    (_with("gain = { nan = 0, 4 = 3 }"), "experiments.ranker.gain", "grades as keys"),
    (_with("gain = { inf = 5, 4 = 3 }"), "experiments.ranker.gain", "grades as keys"),
    (_with("gain = { -1 = 0, 4 = 3 }"), "experiments.ranker.gain", "grades as keys"),
    (_with("discount = 'log10'"), "experiments.ranker.discount", "log2-from-2"),
    (_with("ideal = 'judged'"), "experiments.ranker.ideal", "shown, constant"),
    (_with("max_grade = 0"), "experiments.ranker.max_grade", "a number from"),
    (_with("max_grade = 30000"), "experiments.ranker.max_grade", "at most 65536"),
    (_with("gain = 'exp2'\nmax_grade = 17"), "experiments.ranker.max_grade", "to 16"),
    (_with("relevant_grade = 9"), "experiments.ranker.relevant_grade", "to 4"),
    (
        _with("metrics = ['ndcg@5']\ngrades = { bad = -1 }"),
        "experiments.ranker.grades.bad",
        "got -1, expected a grade from 0",
    ),
    (_with("grades = { watched = [[0.1, -1], [0.5, 2]] }"), "experiments.ranker.grades.watched", "negative grades"),
    (_with("grades = { helpful = 9 }"), "experiments.ranker.grades.helpful", "to 4"),
    (_with("grades = { helpful = 'yes' }"), "experiments.ranker.grades.helpful", '"score"'),
    (
        _with("grades = { watched = [[0.5, 1], [0.1, 2]] }"),
        "experiments.ranker.grades.watched",
        "thresholds in ascending order",
    ),
    (_with("grades = { watched = [1, 2] }"), "experiments.ranker.grades.watched", "pairs"),
    (_with("categories = 'fractions'"), "experiments.ranker.categories", "a list of at most 100"),
    (_with("categories = ['a', 'a']"), "experiments.ranker.categories", "every category once"),
    (_with("items = '36h'"), "experiments.ranker.items.horizon", "whole days up to 365d"),
    (_with("items = { expected_items = 5 }"), "experiments.ranker.items.horizon", "a duration"),
    (
        _with("items = { horizon = '3d', sample_one_in = 0 }"),
        "experiments.ranker.items.sample_one_in",
        "an integer from 1",
    ),
    (
        _with("items = { horizon = '3d', catalogue = '/dev/null'}"),
        "experiments.ranker.items.catalogue",
        "ids, one per",
    ),
    (_with("drift = 7"), "experiments.ranker.drift", "a table with the keys alpha, items_reference, reference"),
    (_with("drift = { reference = 0 }"), "experiments.ranker.drift.reference", "an integer from 1 to 90"),
    (_with("drift = { reference = '/nowhere' }"), "experiments.ranker.drift.reference", "a readable file"),
    (_with("drift = { reference = '/dev/null' }"), "experiments.ranker.drift.reference", "one JSON object"),
    (_with("drift = { items_reference = 91 }"), "experiments.ranker.drift.items_reference", "an integer from 1 to 90"),
    (_with("drift = { items_reference = '/nowhere' }"), "experiments.ranker.drift.items_reference", "a readable file"),
    (_with("drift = { items_reference = '/dev/null' }"), "experiments.ranker.drift.items_reference", "item → times"),
    (_with("drift = { alpha = 1 }"), "experiments.ranker.drift.alpha", "a number from 0.001 to 0.25"),
    (_with("categories = ['other']"), "experiments.ranker.categories", "are reserved"),
    (_with("feedback_window = '1 day'"), "experiments.ranker.feedback_window", "a duration"),
    (_with("feedback_window = '0s'"), "experiments.ranker.feedback_window", "a duration"),
    (_with("retention = '2d'"), "experiments.ranker.retention", "feedback_window + allowed_lateness"),
    (_with("decay = ['fast']"), "experiments.ranker.decay", "half-lives"),
    (_with("decay = ['1h', '1h']"), "experiments.ranker.decay", "every half-life once"),
    (_with("starts_at = 2026-01-01T00:00:00"), "experiments.ranker.starts_at", "with an offset"),
    (
        _with("starts_at = 2026-02-01T00:00:00Z\nends_at = 2026-01-01T00:00:00Z"),
        "experiments.ranker.ends_at",
        "after starts_at",
    ),
    (_with("mde = 0"), "experiments.ranker.mde", "a number from 1e-06"),
    (_with("primary = 'success@5'\nmde = 5"), "experiments.ranker.mde", "to 1"),
    (_with("margin = -0.1"), "experiments.ranker.margin", "a number from 0"),
    (_with("alpha = 0.5"), "experiments.ranker.alpha", "to 0.25"),
    (_with("alpha = 0"), "experiments.ranker.alpha", "a number from 1e-06"),
    (_with("min_days = '7d'"), "experiments.ranker.min_days", "a number from 0 to 365"),
    (_with("population = 'some'"), "experiments.ranker.population", "one of rated, all"),
    (_with("allocations = 3"), "experiments.ranker.allocations", "tables with the keys from, shares"),
    (_with(f"allocations = [{{ {_FROM} }}]"), "experiments.ranker.allocations[0].shares", "a table of variants"),
    (_with(f"allocations = [{{ {_HALF} }}]"), "experiments.ranker.allocations[0].from", "a time with an offset"),
    (
        _with(f"allocations = [{{ {_FROM}, shares = {{ a = 0.5, b = 0.4 }} }}]"),
        "experiments.ranker.allocations[0].shares",
        "sum to 1",
    ),
    (
        _with(f"allocations = [{{ {_FROM}, shares = {{ a = 0.5, c = 0.5 }} }}]"),
        "experiments.ranker.allocations[0].shares",
        "one of a, b",
    ),
    (
        _with(f"allocations = [{{ {_FROM}, {_HALF} }}, {{ {_FROM}, {_HALF} }}]"),
        "experiments.ranker.allocations[1].from",
        "a time after the time of the previous allocation",
    ),
    (
        _with(f"starts_at = 2026-02-01T00:00:00Z\nallocations = [{{ {_FROM}, {_HALF} }}]"),
        "experiments.ranker.allocations[0].from",
        "a time after starts_at",
    ),
    (
        _with(f"ends_at = 2026-02-01T00:00:00Z\nallocations = [{{ {_FROM}, {_HALF} }}]"),
        "experiments.ranker.allocations[0].from",
        "before ends_at",
    ),
    (_guardrail("margin = 0.1\nharmful_direction = 'up'"), "experiments.ranker.guardrails[0].metric", "dcg@5, ndcg@5"),
    (_guardrail(_RAIL.replace("ndcg@5", "map")), "experiments.ranker.guardrails[0].metric", "success@5, rated_share"),
    (
        _guardrail("metric = 'ndcg@5'\nmargin = 0.1"),
        "experiments.ranker.guardrails[0].harmful_direction",
        "one of up, down",
    ),
    (
        _guardrail("metric = 'ndcg@5'\nharmful_direction = 'up'"),
        "experiments.ranker.guardrails[0].margin",
        "a number from 1e-06 to 1",
    ),
    (
        _guardrail("metric = 'rated_share'\nharmful_direction = 'up'\nmargin = 2"),
        "experiments.ranker.guardrails[0].margin",
        "to 1",
    ),
    (
        _guardrail("metric = 'feedback:escalated'\nharmful_direction = 'up'\nmargin = 2"),
        "experiments.ranker.guardrails[0].margin",
        "to 1",
    ),
    (_with('pre_period = "14d"'), "experiments.ranker.pre_period", "starts_at as well"),
    (_with('starts_at = 2026-02-01T00:00:00Z\npre_period = "2 weeks"'), "experiments.ranker.pre_period", "a duration"),
    (_with('novelty = "yes"'), "experiments.ranker.novelty", "true or false"),
    (_guardrail(_RAIL.replace("ndcg@5", "feedback:")), "experiments.ranker.guardrails[0].metric", "1 to 64 printable"),
    (
        _guardrail(_RAIL.replace("ndcg@5", "escalated")),
        "experiments.ranker.guardrails[0].metric",
        "share:KIND, share:KIND>=T",
    ),
    (_guardrail(_RAIL) + f"[[experiments.guardrails]]\n{_RAIL}\n", "experiments.ranker.guardrails[1].metric", "once"),
]

UNKNOWN_KEYS = [
    (
        _section("x = 1"),
        (
            "unknown key x; the keys are discover, display, experiments, http, kafka, limits, notify, schema_registry, "
            "store"
        ),
    ),
    (_section("[kafak]"), "unknown key kafak; did you mean kafka?"),
    (
        _section("[kafka]\nbootstrap_server = 'a:1'"),
        "kafka: unknown key bootstrap_server; did you mean bootstrap_servers?",
    ),
    (GOOD.replace("name", "nmae"), "experiments[0]: unknown key nmae; did you mean name?"),
    (GOOD.replace("control", "contrl"), "experiments.ranker: unknown key contrl; did you mean control?"),
    (_with("gian = 'exp2'"), "experiments.ranker: unknown key gian; did you mean gain?"),
    (_with("colour = 'red'"), "experiments.ranker: unknown key colour; docs/configuration.md lists all keys"),
    (
        _with("drift = { days = 7 }"),
        "experiments.ranker.drift: unknown key days; the keys are alpha, items_reference, ref",
    ),
    (
        _with("items = { horizon = '3d', expected_item = 5 }"),
        "experiments.ranker.items: unknown key expected_item; did you mean expected_items?",
    ),
    (
        _with(f"allocations = [{{ {_FROM}, share = 1, {_HALF} }}]"),
        "experiments.ranker.allocations[0]: unknown key share; did you mean shares?",
    ),
    (
        _guardrail("metrics = 'ndcg@5'\nharmful_direction = 'up'\nmargin = 1"),
        "experiments.ranker.guardrails[0]: unknown key metrics; did you mean metric?",
    ),
]


class TestFaults:
    """A wrong setting raises `ConfigError` before a command starts."""

    @pytest.mark.parametrize(
        ("text", "key", "expected"), FAULTS, ids=[f"{key}-{expected}" for _, key, expected in FAULTS]
    )
    def test_the_message_is_one_line_with_key_value_and_expectation(
        self, tmp_path: Path, text: str, key: str, expected: str
    ) -> None:
        """The message starts with the key and the value; the exit code is 2."""
        with pytest.raises(ConfigError) as caught:
            _load(tmp_path, text)
        line = str(caught.value)
        assert line.startswith((f"{key}: got ", f"{key}: missing, expected "))
        assert expected in line
        assert "\n" not in line
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize(("text", "message"), UNKNOWN_KEYS, ids=[message for _, message in UNKNOWN_KEYS])
    def test_an_unknown_key_is_named_with_the_most_similar_key(self, tmp_path: Path, text: str, message: str) -> None:
        """A misspelt key that is required is reported once, as unknown; short lists of keys are printed."""
        with pytest.raises(ConfigError) as caught:
            _load(tmp_path, text)
        assert str(caught.value).startswith(message)

    def test_all_mistakes_of_a_file_are_reported_in_one_run(self, tmp_path: Path) -> None:
        """The message has a line for each mistake; settings that depend on a wrong setting are not reported."""
        text = """
colour = 1
[kafka]
bootstrap_servers = "nowhere"
max_poll_records = 0
sasl_mechanism = "PLAIN"
[http]
port = 70000
token = "0123456789abcdef"
[[experiments]]
name = "ranker"
control = "c"
variants = { a = 0.6, b = 0.5 }
metrics = ["map@5"]
gian = "exp2"
mde = 0
[[experiments]]
name = "second"
control = "c"
variants = { a = 0.5, b = 0.5 }
novelty = "yes"
alpha = 2
guardrails = [{ metric = "map", harmful_direction = "down", margin = 1 }]
"""
        with pytest.raises(ConfigErrors) as caught:
            _load(tmp_path, text, ABMONITOR_HTTP_PROT="1", ABMONITOR_EXPERIMENTS_7_MDE="1")
        first_line, *lines = str(caught.value).splitlines()
        assert first_line == f"{len(lines)} settings are wrong:"
        lines_and_keys = [
            (
                line.partition(" (line ")[2].removesuffix(" of the file)"),
                line.partition(" (line ")[0].strip().split(": ")[0],
            )
            for line in lines
        ]
        assert lines_and_keys == [
            ("2", UNKNOWN_KEYS[0][1].replace("key x;", "key colour;")),
            ("4", "kafka.bootstrap_servers"),
            ("5", "kafka.max_poll_records"),
            ("6", "kafka.sasl_mechanism"),
            ("8", "http.port"),
            ("9", "http.token"),
            ("12", "experiments.ranker.control"),
            ("13", "experiments.ranker.variants"),
            ("14", "experiments.ranker.metrics"),
            ("15", "experiments.ranker"),
            ("16", "experiments.ranker.mde"),
            ("19", "experiments.second.control"),
            ("21", "experiments.second.novelty"),
            ("22", "experiments.second.alpha"),
            ("23", "experiments.second.guardrails[0].metric"),
            ("", "environment"),
            ("", "environment"),
        ]
        assert "0123456789abcdef" not in str(caught.value)
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize(
        ("text", "keys"),
        [
            (_with("metrics = ['map@5', 'ndcg']\nprimary = 'map@5'\nmde = 0"), ["metrics", "metrics", "mde"]),
            (_with("metrics = ['map@5']\nprimary = 'clicks'"), ["metrics", "primary"]),
            (
                _with("metrics = 'dcg@5'\nretention = '2d'\nclosing_delay = '8d'"),
                ["metrics", "retention", "closing_delay"],
            ),
            (
                _with("retention = '2d'\nfeedback_window = 'x'\nallowed_lateness = 'y'"),
                ["feedback_window", "allowed_l"],
            ),
            (_with("allowed_lateness = 'y'\nclosing_delay = '8d'"), ["allowed_lateness"]),
            (_with("starts_at = 'noon'\npre_period = '14d'\nends_at = 2026-01-01T00:00:00Z"), ["starts_at"]),
            (
                _with("categories = ['a', ' ']\ndrift = { alpha = 1, reference = 0 }"),
                ["categories", "drift.", "drift."],
            ),
            (_with("items = { horizon = '36h', sample_one_in = 0 }"), ["items.horizon", "items.sample_one_in"]),
            (
                _with("gain = 'log'\ngrades = { helpful = 9, bad = -1 }\nmax_grade = 5"),
                ["gain", "grades.h", "grades.b"],
            ),
            (_with("gain = { 0 = 0, 4 = 3 }\ngrades = { a = 1, b = 2 }"), ["gain", "gain"]),
            (_with("gain = { 0 = 0, 4 = 3 }\ngrades = { a = 9 }"), ["grades.a"]),
            (_with("decay = ['fast', '1s', 'slow']"), ["decay", "decay"]),
            (
                _guardrail("metric = 'map'\nharmful_direction = 'left'\nmargin = 0"),
                ["guardrails[0].m", "guardrails[0].h", "guardrails[0].m"],
            ),
            (
                _guardrail("metric = 'map'\nharmful_direction = 'up'\nmargin = 90\ntimeout_ms = 9"),
                ["guardrails[0].metric"],
            ),
            (_guardrail(_RAIL.replace("metric", "metrics")), ["guardrails[0].metrics"]),
            (
                _with(f"metrics = [5]\nallocations = [{{ {_FROM}, shares = {{ c = 0.4 }} }}, {{ {_HALF} }}]"),
                ["metrics", "allocations[0].shares", "allocations[0].shares", "allocations[1].from"],
            ),
            (GOOD.replace("b = 0.5", "b = 0.4").replace('control = "a"', 'control = "c"'), ["control", "variants"]),
            (GOOD.replace(", b = 0.5", "").replace('control = "a"', 'control = "b"'), ["variants"]),
            (
                GOOD.replace("b = 0.5", "b = 0.4") + f"allocations = [{{ {_FROM}, shares = {{ c = 1 }} }}]",
                ["variants", "allocations[0].shares"],
            ),
            (GOOD.replace("a = 0.5", '" a" = 0.5').replace("b = 0.5", "b = 9"), ["variants", "variants.b"]),
            (
                GOOD.replace("b = 0.5", "b = 0.4")
                + f"metrics = ['x']\n[[experiments.guardrails]]\n{_RAIL}\ntimeout_ms = 3",
                ["variants", "metrics", "guardrails[0].timeout_ms"],
            ),
        ],
    )
    def test_a_fault_is_reported_unless_it_may_follow_from_another_fault(
        self, tmp_path: Path, text: str, keys: list[str]
    ) -> None:
        """A value is checked with the values that it depends on if those values are valid; lists entry by entry."""
        errors = _load_errors(tmp_path, text)
        assert len(errors) == len(keys), errors
        for error, key in zip(errors, keys, strict=True):
            assert error.key.startswith(f"experiments.ranker.{key}")

    @pytest.mark.parametrize(
        ("text", "keys"),
        [
            ("[kafka]\nmax_poll_records = 0\nbootstrap_servers = 'a'", ["max_poll_records", "bootstrap_servers"]),
            (
                "[kafka]\nfeedback_topic = 'chatbot.responses'\nsasl_username = 'x'",
                ["feedback_topic", "sasl_username"],
            ),
            ("[kafka]\nsecurity_protocol = 'SASL'\nsasl_mechanism = 'PLAIN'", ["security_protocol"]),
            (
                "[kafka]\nsecurity_protocol = 'SASL_SSL'\nsasl_mecanism = 'PLAIN'\nsasl_username = ''",
                ["sasl_mecanism", "sasl_username", "sasl_password"],
            ),
            (
                f"[kafka]\nsecurity_protocol = 'SSL'\nssl_cert_file = '{__file__}'\nssl_key_file = '/nowhere'",
                ["ssl_key_file"],
            ),
            (f"[kafka]\nssl_cert_file = '{__file__}'\nssl_key_file = '{__file__}'", ["ssl_cert_file", "ssl_key_file"]),
        ],
    )
    def test_faults_of_a_section_that_depend_on_each_other_are_reported_once(
        self, tmp_path: Path, text: str, keys: list[str]
    ) -> None:
        """A password or a mechanism that is misspelt is not reported as missing, too."""
        errors = _load_errors(tmp_path, _section(text))
        assert sorted(error.key for error in errors) == sorted(f"kafka.{key}" for key in keys)

    def test_a_repeated_name_has_the_lines_of_both_experiments(self, tmp_path: Path) -> None:
        """The other faults of the second experiment have its lines, even if the first experiment is wrong, too."""
        with pytest.raises(ConfigErrors) as caught:
            _load(tmp_path, GOOD + "alpha = 9\n" + GOOD + "novelty = 1\nmargin = -1\n")
        assert str(caught.value).splitlines()[1:] == [
            "  experiments.ranker.alpha: got 9, expected a number from 1e-06 to 0.25 (line 6 of the file)",
            (
                '  experiments[1].name: got "ranker", expected every name once (line 9 of the file); '
                "experiments[0].name in line 3 is the same"
            ),
            "  experiments[1].novelty: got 1, expected true or false (line 12 of the file)",
            "  experiments[1].margin: got -1, expected a number from 0 to 65536 (line 13 of the file)",
        ]

    @pytest.mark.parametrize("metric", ["latency_ms", "latency_above_ms:2000"])
    def test_a_guardrail_against_faster_responses_is_rejected(self, tmp_path: Path, metric: str) -> None:
        """Less latency, and fewer slow responses, are no harm."""
        table = f"metric = '{metric}'\nmargin = 0.1\nharmful_direction"
        assert _load(tmp_path, _guardrail(f"{table} = 'up'")).experiments[0].decision.guardrails
        with pytest.raises(ConfigError, match=r'harmful_direction: got "down", expected up, because a fall of late'):
            _load(tmp_path, _guardrail(f"{table} = 'down'"))

    @pytest.mark.parametrize(
        ("content", "hint"),
        [
            ("# ours\n\nkafka:\n  group_id: a\n", "looks like YAML or JSON"),
            ("---\nkafka: {}\n", "looks like YAML or JSON"),
            ('{"kafka": {}}', "looks like YAML or JSON"),
            ("[[experiments]]\nnovelty = True\n", "TOML has true and false in lower case, and not True"),
        ],
    )
    def test_a_file_in_another_format_is_named_as_such(self, tmp_path: Path, content: str, hint: str) -> None:
        """The message begins with the path and the error of the parser."""
        with pytest.raises(UsageError, match=rf"config\.toml: this is not TOML: .*{hint}"):
            _load(tmp_path, content)

    def test_a_long_value_is_cut_in_the_message(self, tmp_path: Path) -> None:
        """A message fits into a few lines of a terminal."""
        with pytest.raises(ConfigError) as caught:
            _load(tmp_path, _with(f"gain = '{'x' * 5000}'"))
        assert len(str(caught.value)) < 500

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"a = ", "not TOML"),
            (b"\xff\xfe", "not UTF-8"),
            (None, "No such file"),
            (b"a = " + b"9" * 5000, "not TOML"),
            (b"a = " + b"[" * 100_000, "nested too deeply"),
        ],
    )
    def test_the_message_names_an_unreadable_file(self, tmp_path: Path, content: bytes | None, expected: str) -> None:
        """The message has the path and the reason."""
        path = tmp_path / "config.toml"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=expected) as caught:
            load_settings(path, {})
        assert str(path) in str(caught.value)

    def test_a_byte_order_mark_is_accepted(self, tmp_path: Path) -> None:
        """Some editors begin every file with a byte order mark."""
        path = tmp_path / "config.toml"
        path.write_text(GOOD, encoding="utf-8-sig")
        assert load_settings(path, {}).experiments[0].name == "ranker"

    def test_a_directory_is_rejected_as_a_file(self, tmp_path: Path) -> None:
        """The error is a `UsageError` with a message."""
        with pytest.raises(UsageError, match="directory"):
            load_settings(tmp_path, {})


class TestDecisions:
    """Criteria of verdicts."""

    def test_all_criteria_have_defaults(self, tmp_path: Path) -> None:
        """The default margin is 0, and the only guardrail is on the rated share."""
        (experiment,) = _load(tmp_path, GOOD).experiments
        assert experiment.decision == DecisionSettings()
        assert [guardrail.metric for guardrail in experiment.decision.guardrails] == ["rated_share"]

    def test_all_criteria_are_read_from_the_file(self, tmp_path: Path) -> None:
        """Allocations are inline tables, guardrails an array of tables."""
        lines = "mde = 0.05\nmargin = 0.02\nalpha = 0.01\nmin_days = 14\npopulation = 'all'\n"
        text = (
            _with(f"{lines}allocations = [{{ {_FROM}, shares = {{ a = 1 }} }}]")
            + f"[[experiments.guardrails]]\n{_RAIL}"
        )
        decision = _load(tmp_path, text).experiments[0].decision
        assert (decision.mde, decision.margin, decision.alpha, decision.min_days) == (0.05, 0.02, 0.01, 14)
        assert decision.population == "all"
        assert decision.allocations == (AllocationSettings(1_769_904_000_000, {"a": 1.0}),)
        assert decision.guardrails == (GuardrailSettings("ndcg@5", "down", 0.1),)

    def test_an_empty_list_disables_all_guardrails(self, tmp_path: Path) -> None:
        """The list may also be an environment variable."""
        assert _load(tmp_path, _with("guardrails = []")).experiments[0].decision.guardrails == ()
        settings = _load(tmp_path, GOOD, ABMONITOR_EXPERIMENTS_0_GUARDRAILS="[]", ABMONITOR_EXPERIMENTS_0_MDE="0.2")
        assert settings.experiments[0].decision == DecisionSettings(mde=0.2, guardrails=())

    def test_a_timeout_is_only_for_guardrails_on_latency(self, tmp_path: Path) -> None:
        """The value is in milliseconds, up to a day; a latency guardrail without a time-out gets a warning."""
        table = 'guardrails = [{ metric = "latency_ms", harmful_direction = "up", margin = 50'
        (with_timeout,) = _load(tmp_path, _with(f"{table}, timeout_ms = 30000 }}]")).experiments
        assert with_timeout.decision.guardrails == (GuardrailSettings("latency_ms", "up", 50.0, 30_000.0),)
        assert experiment_warnings([with_timeout]) == []
        (without_timeout,) = _load(tmp_path, _with(f"{table} }}]")).experiments
        (warning,) = experiment_warnings([without_timeout])
        assert warning.startswith("experiments.ranker.guardrails[0] is on latency_ms without timeout_ms: ")
        for value in ("0", "86400001", '"30s"'):
            with pytest.raises(ConfigError, match=r"guardrails\[0\]\.timeout_ms: got"):
                _load(tmp_path, _with(f"{table}, timeout_ms = {value} }}]"))
        with pytest.raises(ConfigError, match=r"guardrails\[0\]\.timeout_ms: got 3"):
            _load(
                tmp_path, _guardrail("metric = 'rated_share'\nharmful_direction = 'down'\nmargin = 0.1\ntimeout_ms = 3")
            )

    def test_a_relative_margin_replaces_the_margin(self, tmp_path: Path) -> None:
        """A fraction of the control's mean, up to 1; not together with an absolute margin. The default is relative."""
        table = "metric = 'rated_share'\nharmful_direction = 'down'\n"
        (experiment,) = _load(tmp_path, _guardrail(f"{table}relative_margin = 0.2")).experiments
        assert experiment.decision.guardrails == (GuardrailSettings("rated_share", "down", 0.2, is_relative=True),)
        assert DecisionSettings().guardrails == (GuardrailSettings("rated_share", "down", 0.1, is_relative=True),)
        with pytest.raises(ConfigError, match=r"relative_margin: got 1\.5, expected a number from 1e-06 to 1"):
            _load(tmp_path, _guardrail(f"{table}relative_margin = 1.5"))
        with pytest.raises(ConfigError, match=r"relative_margin: got 0\.2, expected margin or relative_margin"):
            _load(tmp_path, _guardrail(f"{table}relative_margin = 0.2\nmargin = 0.1"))

    def test_ndcg_with_the_ideal_of_the_shown_items_as_primary_gets_a_warning(self, tmp_path: Path) -> None:
        """Neither as a secondary metric nor with a constant ideal."""
        primary = "metrics = ['dcg@5', 'ndcg@5']\nprimary = 'ndcg@5'\n"
        (experiment,) = _load(tmp_path, _with(primary)).experiments
        (warning,) = experiment_warnings([experiment])
        assert warning.startswith('experiments.ranker.primary is ndcg@5 with ideal = "shown": ')
        for lines in (f"{primary}ideal = 'constant'", "metrics = ['dcg@5', 'ndcg@5']\nprimary = 'dcg@5'"):
            assert experiment_warnings(_load(tmp_path, _with(lines)).experiments) == []

    def test_an_allocation_that_begins_within_a_utc_day_gets_a_warning(self, tmp_path: Path) -> None:
        """Midnight in UTC gets no warning, at any offset of the time."""
        noon, half = "from = 2026-02-03T12:00:00+01:00", "from = 2026-02-04T01:00:00+01:00"
        allocations = ", ".join(f"{{ {from_key}, {_HALF} }}" for from_key in (_FROM, noon, half))
        (experiment,) = _load(tmp_path, _with(f"allocations = [{allocations}]")).experiments
        (warning,) = experiment_warnings([experiment])
        assert warning.startswith("experiments.ranker.allocations[1].from is not midnight in UTC: ")
        assert warning.endswith("Set the time to midnight, such as 2026-02-04T00:00:00+00:00")

    def test_an_allocation_that_begins_within_a_day_of_another_zone_gets_a_warning(self, tmp_path: Path) -> None:
        """Midnight in the zone of the experiment gets no warning, before and after a change of the clock."""
        times = ("2026-03-28T00:00:00Z", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00")
        allocations = ", ".join(f"{{ from = {time}, {_HALF} }}" for time in times)
        lines = f"day = 'Europe/Berlin'\nallocations = [{allocations}]"
        (experiment,) = _load(tmp_path, _with(lines)).experiments
        (warning,) = experiment_warnings([experiment])
        assert warning.startswith("experiments.ranker.allocations[0].from is not midnight in Europe/Berlin: ")
        assert warning.endswith("Set the time to midnight, such as 2026-03-29T00:00:00+01:00")

    def test_a_half_life_that_is_long_for_the_retention_gets_a_warning(self, tmp_path: Path) -> None:
        """With a retention of 30 days, half-lives above 80 hours and reciprocal decays above 30 days get warnings."""
        decays = ["24h", "80h", "7d", "30d", "reciprocal-30d", "reciprocal-90d"]
        (experiment,) = _load(tmp_path, _with(f"decay = {decays}")).experiments
        warnings = [warning.removeprefix("experiments.ranker.decay: ") for warning in experiment_warnings([experiment])]
        older = "of its weight to responses older than retention, which are left out: set retention to"
        assert warnings == [
            f"7d would give 5.1% {older} 63d or more",
            f"30d would give 50.0% {older} 270d or more",
            f"reciprocal-90d would give 23.9% {older} 90d or more",
        ]

    def test_criteria_are_no_definitions_of_aggregates(self, tmp_path: Path) -> None:
        """Criteria may change while the store is in use."""
        lines = "mde = 0.05\nmargin = 0.02\nalpha = 0.01\nmin_days = 14\npopulation = 'all'\nguardrails = []\n"
        (changed,) = _load(tmp_path, _with(f"{lines}allocations = [{{ {_FROM}, {_HALF} }}]")).experiments
        (original,) = _load(tmp_path, GOOD).experiments
        assert aggregate_definitions(original) == aggregate_definitions(changed)


class TestDefinitions:
    """Settings of an experiment that the stored aggregates depend on."""

    def test_control_shares_primary_and_retention_are_no_definitions(self, tmp_path: Path) -> None:
        """Settings with another control, primary, share or retention work with the same store."""
        (original,) = _load(tmp_path, GOOD).experiments
        text = GOOD.replace('control = "a"', 'control = "b"').replace("0.5, b = 0.5", "0.1, b = 0.9")
        (changed,) = _load(tmp_path, text + "primary = 'success@5'\nretention = '60d'\n").experiments
        assert aggregate_definitions(original) == aggregate_definitions(changed)
        (undefined,) = _load(tmp_path, GOOD + "primary = 'ndcg@5'\n").experiments
        assert aggregate_definitions(undefined)["primary"] == "ndcg@5", "its undefined values have separate sums"

    def test_each_wrong_guardrail_is_reported(self, tmp_path: Path) -> None:
        """One run names all of them."""
        tables = ", ".join(f"{{ metric = '{name}', harmful_direction = 'up', margin = 0.1 }}" for name in ("x", "y"))
        with pytest.raises(ConfigErrors) as caught:
            _load(tmp_path, GOOD + f"guardrails = [{tables}]\n")
        assert [error.key.rpartition(".guardrails")[2] for error in caught.value.errors] == ["[0].metric", "[1].metric"]

    def test_the_analysis_unit_and_activity_guardrails_are_definitions(self, tmp_path: Path) -> None:
        """Other units or other counts of a student need other sums."""
        guardrail = "guardrails = [{ metric = 'return_days', harmful_direction = 'down', margin = 0.1 }]\n"
        (changed,) = _load(tmp_path, GOOD + "unit = 'group'\nclosing_delay = '6h'\n" + guardrail).experiments
        definitions = aggregate_definitions(changed)
        assert (definitions["unit"], definitions["student_metrics"]) == ("group", ["return_days"])
        assert changed.closing_ms == 30 * 3_600_000

    def test_the_zone_of_the_days_is_a_definition_unless_it_is_utc(self, tmp_path: Path) -> None:
        """So stores without a zone keep their definitions."""
        (default,) = _load(tmp_path, GOOD).experiments
        (utc,) = _load(tmp_path, _with("day = 'UTC'")).experiments
        (berlin,) = _load(tmp_path, _with("day = 'Europe/Berlin'")).experiments
        assert utc == default
        assert "day" not in aggregate_definitions(utc)
        assert definition_differences("ranker", aggregate_definitions(utc), aggregate_definitions(berlin)) == [
            "ranker.day: not set in the store, Europe/Berlin in the file"
        ]

    @pytest.mark.parametrize(
        ("value", "hint"),
        [
            ("'Europe/Berlim'", "; did you mean Europe/Berlin?"),
            ("'berlin'", "; did you mean Europe/Berlin?"),
            ("'America/New York'", "; did you mean America/New_York?"),
            ("'utc'", "; did you mean UTC?"),
            ("'Europe/Frankfurt'", ""),
            ("'../UTC'", "; did you mean UTC?"),
            ("1", ""),
            ("''", ""),
        ],
    )
    def test_an_unknown_zone_is_reported_with_the_most_similar_one(self, tmp_path: Path, value: str, hint: str) -> None:
        """Names are those of the IANA database, with its case."""
        (error,) = _load_errors(tmp_path, _with(f"day = {value}"))
        assert error.key == "experiments.ranker.day"
        name = "the name of a time zone of the IANA database, such as Europe/Berlin"
        assert str(error).endswith(f"expected {name}{hint} (line 6 of the file)")

    def test_the_zone_of_the_computer_is_no_zone(self, tmp_path: Path) -> None:
        """Another computer may have another zone under this name."""
        (error,) = _load_errors(tmp_path, _with("day = 'localtime'"))
        assert error.key == "experiments.ranker.day"

    def test_gain_tables_with_nearly_equal_grades_differ(self, tmp_path: Path) -> None:
        """Grades are written with all digits, whole grades without a decimal point."""
        original, changed = (
            _load(tmp_path, _with(f"gain = {{ 0 = 0, '{grade}' = 1, 4 = 10 }}")).experiments[0]
            for grade in ("3.333331", "3.333333")
        )
        assert aggregate_definitions(original)["gain"] == {"0": 0.0, "3.333331": 1.0, "4": 10.0}
        assert definition_differences("ranker", aggregate_definitions(original), aggregate_definitions(changed))

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (
                "metrics = ['dcg@5', 'ndcg@5', 'rr@5']",
                "ranker.metrics: the file lacks success@5 and the file adds rr@5",
            ),
            (
                "metrics = ['ndcg@5', 'dcg@5', 'success@5']",
                "ranker.metrics: dcg@5, ndcg@5, success@5 in the store, ndcg@5",
            ),
            ("decay = ['24h']", "ranker.decay: the file lacks 1h"),
            ("gain = 'exp2'", "ranker.gain: linear in the store, exp2 in the file"),
            ("gain = { 0 = 0, 4 = 1 }", "ranker.gain: linear in the store, { 0 = 0.0, 4 = 1.0 } in the file"),
            ("feedback_window = '90m'", "ranker.feedback_window: 1d in the store, 90m in the file"),
            (
                "starts_at = 2026-11-01T00:00:00Z",
                "ranker.starts_at: not set in the store, 2026-11-01T00:00:00+00:00 in",
            ),
            ("items = '30d'", "ranker.items: not counted in the store, counted over 30 days in the file"),
            ("categories = ['a']", "ranker.categories: the file adds a"),
            ("novelty = true", "ranker.novelty: not set in the store, true in the file"),
        ],
    )
    def test_a_changed_definition_is_described_in_words(self, tmp_path: Path, line: str, message: str) -> None:
        """Lists are described by their added and removed members, times and durations as in the file."""
        (original,), (changed,) = _load(tmp_path, GOOD).experiments, _load(tmp_path, _with(line)).experiments
        differences = definition_differences("ranker", aggregate_definitions(original), aggregate_definitions(changed))
        assert any(text.startswith(message) for text in differences), differences

    def test_a_changed_count_of_items_is_described_key_by_key(self, tmp_path: Path) -> None:
        """A catalogue is described by its checksum, because it may have millions of ids."""
        (tmp_path / "ids.txt").write_text("video-1\n")
        (original,) = _load(tmp_path, _with("items = '30d'")).experiments
        (changed,) = _load(
            tmp_path, _with(f"items = {{ horizon = '7d', catalogue = '{tmp_path / 'ids.txt'}' }}")
        ).experiments
        differences = definition_differences("ranker", aggregate_definitions(original), aggregate_definitions(changed))
        assert [text.partition(", ")[0] for text in differences] == [
            "ranker.items.catalogue: all items in the store",
            "ranker.items.horizon: 30d in the store",
            "ranker.items.expected_items: 10000 in the store",
        ]

    @pytest.mark.parametrize(
        "line",
        ["gain = 'exp2'", "ideal = 'constant'", "feedback_window = '1h'", "metrics = ['dcg@5']", "decay = ['2h']"],
    )
    def test_a_changed_definition_is_named_with_both_values(self, tmp_path: Path, line: str) -> None:
        """The line starts with the experiment and the key."""
        (original,), (changed,) = _load(tmp_path, GOOD).experiments, _load(tmp_path, _with(line)).experiments
        differences = definition_differences("ranker", aggregate_definitions(original), aggregate_definitions(changed))
        assert any(text.startswith(f"ranker.{line.split(maxsplit=1)[0]}") for text in differences)
