"""A starting configuration from a sample of topics: sources, experiments and grades, with a TODO for every guess."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from monitor.config import EventType, is_name, value_text
from monitor.decoding.documents import DocumentParser
from monitor.decoding.mapping import MessageContext
from monitor.decoding.record_trace import describe_framing, describe_unparsed
from monitor.decoding.sample_report import SampledRecord, SampleReport
from monitor.decoding.schema_registry import SchemaRegistry
from monitor.decoding.source_toml import DEFAULT_EXPERIMENT, field_lines, table_lines
from monitor.decoding.suggestions import collect_paths, suggest_fields, toml_key, toml_string
from monitor.engine import EventDecoder
from monitor.errors import InvalidEvent

_NATIVE_SHARE: Final = 0.9
"""Share of native events from which a topic is taken to have the native format."""
_TYPE_NAMES: Final = frozenset(
    {"type", "eventtype", "messagetype", "kind", "action", "actionname", "event", "eventname"}
)
_MAX_TYPES: Final = 20
_MAX_MESSAGES: Final = 2000
"""Number of messages of a topic that the fields are guessed from."""
_TYPE_COVERAGE: Final = 0.95
_FEEDBACK_MARKS: Final = frozenset({"kind", "item_id", "score"})
_VIEW_KINDS: Final = frozenset({"impression", "view", "viewed", "shown", "display", "displayed", "seen"})
"""Kinds of feedback that are no opinion about an item."""
_CONTROL_NAMES: Final = ("control", "baseline", "default", "current", "champion", "old", "off", "a", "0")
_MAX_EXPERIMENTS: Final = 20
_MAX_VARIANTS: Final = 20
_MAX_LISTED_FIELDS: Final = 12
_MAX_ANSWER_METRICS: Final = 10
_DEFAULT_GRADE: Final = 4.0
_EQUAL_SHARES_ERRORS: Final = 3.0
"""Standard errors by which observed shares may differ from equal ones."""


@dataclass(slots=True)
class TopicSample:
    """The sampled messages of a topic."""

    topic: str
    records: int = 0
    native: Counter[EventType] = field(default_factory=Counter)
    messages: list[MessageContext] = field(default_factory=list)
    framings: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0

    def native_type(self) -> EventType | None:
        """Return the type of the events if the topic has the native format, else None."""
        for event_type, count in self.native.most_common(1):
            if count >= _NATIVE_SHARE * self.records:
                return event_type
        return None


@dataclass(frozen=True, slots=True)
class GuessedSource:
    """A source that the messages of a topic seem to be."""

    topic: str
    event_type: EventType
    suggestions: Mapping[str, str]
    """Field → value in TOML; empty for the native format."""
    is_native: bool = False
    conditions: Sequence[tuple[str, Sequence[str]]] = ()
    """Paths and values of the filters that separate the source's messages from others of the topic."""


def sample_topics(
    records: Iterable[SampledRecord],
    topics: Sequence[str],
    events: EventDecoder,
    registry: SchemaRegistry | None,
    now_ms: int,
) -> list[TopicSample]:
    """Return the samples of the topics; raises `DependencyUnavailable` if the registry does not answer."""
    parser = DocumentParser("auto", "auto", registry, None)
    samples = {topic: TopicSample(topic) for topic in topics}
    for record in records:
        value = record.value
        if value is None:
            continue
        sample = samples[record.topic]
        sample.records += 1
        try:
            document = parser.parse(value, record.headers)
        except InvalidEvent as error:
            sample.framings[describe_unparsed(value, record.headers, error)] += 1
            sample.unreadable += 1
            continue
        sample.framings[describe_framing(document.framing)] += 1
        if document.is_deletion:
            continue
        if len(sample.messages) < _MAX_MESSAGES:
            sample.messages.append(
                MessageContext(
                    document.fields, document.envelope, record.headers, record.key, record.timestamp, record.topic,
                    f"{record.topic}:{record.partition}", record.offset,
                )
            )  # fmt: skip
        event_type = _native_type(events, value, now_ms)
        if event_type is not None:
            sample.native[event_type] += 1
    return list(samples.values())


def _native_type(events: EventDecoder, value: bytes, now_ms: int) -> EventType | None:
    """Return the type of a message in the native format; None for another format."""
    for event_type, decode in (("feedback", events.decode_feedback), ("response", events.decode_response)):
        try:
            decode(value, now_ms)
        except InvalidEvent:
            continue
        return "feedback" if event_type == "feedback" else "response"
    return None


def guess_sources(sample: TopicSample) -> list[GuessedSource]:
    """Return the sources of a topic; none if the messages have neither lists of items nor references to responses."""
    native_type = sample.native_type()
    if native_type is not None:
        return [GuessedSource(sample.topic, native_type, {}, is_native=True)]
    sources = _split_by_type(sample)
    if sources:
        return sources
    event_type, suggestions = _guess_type(sample.messages)
    if event_type is None:
        return []
    return [GuessedSource(sample.topic, event_type, suggestions, conditions=_presence(suggestions, sample.messages))]


def _condition_value(texts: Sequence[str]) -> str:
    return toml_string(texts[0]) if len(texts) == 1 else f"[{', '.join(map(toml_string, texts))}]"


def _presence(suggestions: Mapping[str, str], messages: Sequence[MessageContext]) -> list[tuple[str, Sequence[str]]]:
    """Return a condition on the response_id if some messages have none, which are then no events."""
    for path, path_values in collect_paths(messages).items():
        if suggestions.get("response_id") == toml_string(path) and len(path_values.values) < len(messages):
            return [(path, ["*"])]
    return []


def _guess_type(messages: Sequence[MessageContext]) -> tuple[EventType | None, Mapping[str, str]]:
    """Return the type of the events, None if they seem to be neither, and the suggested fields."""
    fields = suggest_fields("response", messages)
    if "items" in fields:
        return "response", fields
    fields = suggest_fields("feedback", messages)
    if "response_id" in fields and fields.keys() & _FEEDBACK_MARKS:
        return "feedback", fields
    return None, {}


def _split_by_type(sample: TopicSample) -> list[GuessedSource]:
    """Return sources with a filter on the type of the message, if the types differ; otherwise none."""
    for path, path_values in collect_paths(sample.messages).items():
        name = "".join(letter for letter in path_values.names[-1].lower() if letter.isalnum())
        texts = [value_text(value) for value in path_values.values]
        is_type = name in _TYPE_NAMES and len(texts) >= _TYPE_COVERAGE * len(sample.messages)
        if not is_type or None in texts or not 1 < len(set(texts)) <= _MAX_TYPES:
            continue
        groups: dict[str, list[MessageContext]] = {}
        for message in sample.messages:
            value = collect_paths([message]).get(path)
            if value is not None:
                groups.setdefault(value_text(value.values[0]) or "", []).append(message)
        types = {text: _guess_type(messages)[0] for text, messages in groups.items()}
        if len(set(types.values())) > 1 and "response" in types.values():
            return list(_sources_of_groups(sample.topic, path, groups, types))
    return []


def _sources_of_groups(
    topic: str,
    path: str,
    groups: Mapping[str, Sequence[MessageContext]],
    types: Mapping[str, EventType | None],
) -> Iterator[GuessedSource]:
    event_types: tuple[EventType, ...] = ("response", "feedback")
    for event_type in event_types:
        texts = [text for text, group_type in types.items() if group_type == event_type]
        if texts:
            messages = [message for text in texts for message in groups[text]]
            fields = suggest_fields(event_type, messages)
            conditions = [(path, sorted(texts)), *_presence(fields, messages)]
            yield GuessedSource(topic, event_type, fields, conditions=conditions)


def source_sections(samples: Sequence[TopicSample], guesses: Sequence[GuessedSource]) -> tuple[list[str], list[str]]:
    """Return lines for the table `[kafka]`, and the lines of `[[kafka.sources]]` and of unused topics."""
    comments = [*(line for sample in samples for line in _topic_comments(sample, guesses)), ""]
    native = {guess.event_type: guess.topic for guess in guesses if guess.is_native}
    if len(native) == len(guesses) == 2:  # noqa: PLR2004  one topic for each type
        return [
            f"responses_topic = {toml_string(native['response'])}",
            f"feedback_topic = {toml_string(native['feedback'])}",
        ], comments
    lines = []
    for guess in guesses:
        lines += [*table_lines([guess.topic], guess.event_type)]
        if guess.is_native:
            lines += ['format = "native"', ""]
            continue
        if guess.conditions:
            conditions = (f"{toml_string(path)} = {_condition_value(texts)}" for path, texts in guess.conditions)
            lines.append(f"when = {{ {', '.join(conditions)} }}  # TODO: confirm; other messages are ignored")
        lines += [*field_lines(guess.event_type, guess.suggestions), ""]
    event_types: tuple[EventType, ...] = ("response", "feedback")
    for event_type in event_types:
        if all(guess.event_type != event_type for guess in guesses):
            lines += [
                f"# TODO: no topic with {event_type} events was found; name it and its fields",
                *table_lines(["TODO"], event_type),
                *field_lines(event_type, {}),
                "",
            ]
    return [], [*comments, *lines]


def _topic_comments(sample: TopicSample, guesses: Sequence[GuessedSource]) -> list[str]:
    """Return comment lines about a topic: its framing, and why it is not used."""
    if not sample.records:
        return [f"# topic {sample.topic}: no messages"]
    framings = "; ".join(f"{text} ({count:,})" for text, count in sample.framings.most_common(5))
    lines = [f"# topic {sample.topic}: {framings}"]
    if any("schema" in text and "not readable" in text for text in sample.framings):
        lines.append("# TODO: set schema_registry.url, or ABMONITOR_SCHEMA_REGISTRY_URL and run ab-monitor init again")
    if all(guess.topic != sample.topic for guess in guesses):
        paths = list(collect_paths(sample.messages))
        names = ", ".join(paths[:_MAX_LISTED_FIELDS]) + (", …" if len(paths) > _MAX_LISTED_FIELDS else "")
        lines.append("# TODO: not used, because neither a list of items nor the id of a response was found. Fields:")
        lines.append(f"# {names or 'none'}")
    return [comment_text(line) for line in lines]


def comment_text(line: str) -> str:
    """Return a line without characters that TOML does not permit in comments."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def experiment_sections(report: SampleReport) -> list[str]:
    """Return the lines of `[[experiments]]`, from the experiments, variants and kinds of feedback of a sample."""
    arms: dict[str, Counter[str]] = {}
    for (experiment, variant), count in report.arms.items():
        if is_name(experiment) and is_name(variant):
            arms.setdefault(experiment, Counter())[variant] += count
    names = sorted(arms, key=lambda name: -arms[name].total())[:_MAX_EXPERIMENTS]
    if not names:
        return [
            "[[experiments]]",
            f"name = {toml_string(DEFAULT_EXPERIMENT)}  # TODO: no response could be read; the name in the messages",
            'control = "control"  # TODO',
            "variants = { control = 0.5, treatment = 0.5 }  # TODO: names and intended shares of students",
            *_grade_lines(report),
        ]
    lines = []
    for name in names:
        lines += [*_experiment_lines(name, arms[name]), *_grade_lines(report), ""]
    if len(arms) > len(names):
        lines.append(f"# TODO: {len(arms) - len(names)} further experiments were seen; the service skips them")
    return lines[:-1] if not lines[-1] else lines


def _experiment_lines(name: str, counts: Counter[str]) -> Iterator[str]:
    counts = Counter(dict(counts.most_common(_MAX_VARIANTS)))
    total = counts.total()
    observed = ", ".join(f"{variant} {count / total:.1%}" for variant, count in counts.most_common())
    yield "[[experiments]]"
    comment = "  # TODO: the name in the messages" if name == DEFAULT_EXPERIMENT else ""
    yield f"name = {toml_string(name)}{comment}"
    control = guess_control(counts)
    yield f"control = {toml_string(control)}  # TODO: confirm"
    yield f"# observed in {total:,} responses: {comment_text(observed)}"
    if len(counts) == 1:
        yield "# TODO: only one variant was seen; name the others"
    yield f"variants = {shares_table(counts)}  # TODO: the intended shares of students"


def guess_control(variants: Collection[str]) -> str:
    """Return the variant whose name is usual for a control, or the first name in alphabetical order.

    >>> guess_control(["B", "A"]), guess_control(["candidate", "baseline"]), guess_control(["y", "x"])
    ('A', 'baseline', 'x')
    """
    by_name = {variant.lower(): variant for variant in sorted(variants, reverse=True)}
    return next((by_name[text] for text in _CONTROL_NAMES if text in by_name), min(variants))


def shares_table(counts: Counter[str]) -> str:
    """Return the table `variants`, with the shares of the responses; a single variant gets a second one.

    >>> shares_table(Counter(control=90, treatment=10)), shares_table(Counter(control=7))
    ('{ control = 0.9, treatment = 0.1 }', '{ control = 0.5, treatment = 0.5 }')
    """
    shares = round_shares(counts)
    if len(shares) == 1:
        (variant,) = shares
        shares = {variant: 0.5, "treatment" if variant != "treatment" else "other": 0.5}
    table = ", ".join(f"{toml_key(variant)} = {share}" for variant, share in shares.items())
    return f"{{ {table} }}"


def round_shares(counts: Counter[str]) -> dict[str, float]:
    """Return equal shares if the counts do not contradict them, otherwise shares in hundredths; their sum is 1.

    >>> round_shares(Counter(control=190, treatment=158)), round_shares(Counter(control=905, treatment=95))
    ({'control': 0.5, 'treatment': 0.5}, {'control': 0.91, 'treatment': 0.09})
    """
    total = counts.total()
    equal = 1 / len(counts)
    tolerance = _EQUAL_SHARES_ERRORS * math.sqrt(equal * (1 - equal) / total)
    if all(abs(count / total - equal) <= tolerance for count in counts.values()):
        return {name: round(equal, 7) for name in sorted(counts)}
    hundredths = {name: math.floor(100 * count / total) for name, count in counts.items()}
    remainders = sorted(counts, key=lambda name: (-((100 * counts[name]) % total), name))
    for name in remainders[: 100 - sum(hundredths.values())]:
        hundredths[name] += 1
    return {name: hundredths[name] / 100 for name in sorted(counts)}


def _grade_lines(report: SampleReport) -> Iterator[str]:
    """Yield the grades of the kinds of feedback that were seen, or answer metrics if no feedback is about an item."""
    kinds = [kind for kind in sorted(report.kinds) if is_name(kind) and kind.lower() not in _VIEW_KINDS]
    if not kinds:
        yield 'grades = { rating = "score" }  # TODO: kind of feedback → grade; no feedback could be read'
        return
    scored = [kind for kind in kinds if report.scores[kind][0] < report.scores[kind][1]]
    if report.matched and not report.item_feedback:
        yield from _answer_metric_lines(report, kinds, scored)
        return
    rules = {kind: '"score"' if kind in scored else "1" for kind in kinds}
    table = ", ".join(f"{toml_key(kind)} = {rule}" for kind, rule in rules.items())
    yield f"grades = {{ {table} }}  # TODO: confirm; kinds of feedback that are left out are not graded"
    if not scored:
        yield 'population = "all"  # TODO: confirm; the feedback is never negative, so responses without any count as 0'
    max_grade = max((math.ceil(report.scores[kind][1]) for kind in scored), default=1)
    if max_grade != _DEFAULT_GRADE:
        yield f"max_grade = {max_grade}  # TODO: the greatest grade"


def _answer_metric_lines(report: SampleReport, kinds: Sequence[str], scored: Collection[str]) -> Iterator[str]:
    """Yield the metrics of feedback about answers: mean scores of the scored kinds, and shares of the others."""
    names = {kind: f"{'score' if kind in scored else 'share'}:{kind}" for kind in kinds[:_MAX_ANSWER_METRICS]}
    ordered_names = sorted(names.values(), key=lambda name: name.startswith("score:"))
    metrics = ", ".join(map(toml_string, ordered_names))
    yield f"metrics = [{metrics}]  # TODO: confirm; no feedback of the sample is about an item"
    yield f"primary = {toml_string(ordered_names[0])}  # TODO: the metric that decides"
    ranges = [
        f"{toml_key(names[kind])} = [{math.floor(report.scores[kind][0])}, {math.ceil(report.scores[kind][1])}]"
        for kind in names
        if kind in scored
    ]
    if ranges:
        yield f"ranges = {{ {', '.join(ranges)} }}  # TODO: the least and the greatest score"
    yield '# exclusive_kinds = [["thumb_up", "thumb_down"]]  # TODO: kinds that replace each other'
