"""The text of a scrape, against what `prometheus_client` writes and reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from monitor.export import ExperimentsCollector
from monitor.export.exposition import Families, Family, exposed
from monitor.summary import Summary, TrafficSummary
from monitor.traffic import LATENCY_BOUNDS_MS, Flow
from tests.support.units import judge
from tests.unit.test_export import CONTROL, NOTHING, SUMMARY
from tests.unit.test_verdicts import BETTER, SENSITIVE, after, stored

PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.75,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=0.0.4;q=0.4,*/*;q=0.1"
)
ODD = 'a "name"\\with\n{everything}, ü'


class _Families(Families):
    """Gives what it was given."""

    def __init__(self, *families: Family) -> None:
        self._families = families

    def families(self) -> Iterable[Family]:
        return self._families


def _everything() -> Summary:
    """Return a summary with every kind of family, of an experiment and a variant with odd names."""
    judgement = judge(SENSITIVE, stored(SENSITIVE, BETTER), after(14))
    flow = Flow(12_345_678, 3, 9_876_543_210, tuple(range(len(LATENCY_BOUNDS_MS) + 1)))
    traffic = TrafficSummary(flow, flow, 0, 1)
    variants = {"control": replace(CONTROL, traffic=traffic), "treatment": CONTROL, ODD: NOTHING}
    known = replace(SUMMARY.experiments["ranker-v2"], variants=variants, judgement=judgement)
    return Summary(judgement.at_ms, {"ranker": known, ODD: replace(known, name=ODD)})


def _samples(families: Iterable[Metric]) -> list[tuple[str, list[tuple[str, str]], float]]:
    return sorted(
        (each.name, sorted(each.labels.items()), float(each.value)) for own in families for each in own.samples
    )


def _gauges() -> Iterator[Family]:
    """Yield gauges with values of every kind, and a text that is escaped."""
    numbers = (0, -1, 7, 0.1, 1e-9, 999_999.5, 1e6, -1e6, 1_234_567.0, 123_456_789.5, 1e16, -1e16)
    for at, value in enumerate([*numbers, float("inf"), float("-inf"), float("nan")]):
        gauge = Family(f"gauge_{at}", "gauge", ODD, ())
        gauge.add((), value)
        yield gauge


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        PROMETHEUS_2,
        PROMETHEUS_3,
        "text/plain;version=1.0.0;escaping=underscores",
        "text/plain;version=1.0.0;escaping=values",
        "application/openmetrics-text;version=1.0.0;escaping=dots",
        "application/openmetrics-text;version=1.0.0;escaping=values",
    ],
)
@pytest.mark.parametrize("collector", [ExperimentsCollector(_everything, 1), _Families(*_gauges())], ids=["all", "odd"])
def test_every_byte_is_what_the_library_writes(collector: Families, accept: str) -> None:
    """Whatever a request accepts."""
    encode, kind = choose_encoder(accept)
    assert exposed(collector, accept) == (kind, encode(collector))


def test_histograms_and_information_are_those_of_the_library() -> None:
    """What a histogram's and an info's samples are called, in which order, and what their labels are."""
    found = {each.name: each for each in ExperimentsCollector(_everything, 1).collect()}
    experiment = _everything().experiments["ranker"]
    traffic = experiment.variants["control"].traffic
    assert traffic is not None
    buckets = [("+Inf" if at == math.inf else repr(at), float(n)) for at, n in traffic.everything.cumulative()]
    latency = HistogramMetricFamily("abmonitor_response_latency_seconds", "", labels=["experiment", "variant"])
    latency.add_metric(["ranker-v2", "control"], buckets, sum_value=traffic.everything.latency_ms / 1000)
    assert found[latency.name].samples[: len(latency.samples)] == latency.samples
    info = InfoMetricFamily("abmonitor_experiment", "", labels=["experiment"])
    info.add_metric(["ranker-v2"], {"control": experiment.control, "primary": experiment.primary})
    assert info.samples[0] in found[info.name].samples
    assert (found[latency.name].type, found[info.name].type) == ("histogram", "info")


def test_can_be_read_back() -> None:
    """By the parser of each format: every name, label and value."""
    collector = ExperimentsCollector(_everything, 1)
    given = _samples(collector.collect())
    assert len(given) > 100
    for accept, parse in (("", text_string_to_metric_families), (PROMETHEUS_3, openmetrics_families)):
        assert _samples(parse(exposed(collector, accept)[1].decode())) == given


@given(
    st.lists(st.floats() | st.floats(-2e6, 2e6) | st.floats(-1e-2, 1e-2) | st.integers(-(2**60), 2**60), max_size=30)
)
def test_numbers_are_written_as_the_client_library_does(numbers: list[float]) -> None:
    """To the last digit, whatever they are."""
    family = Family("gauge", "gauge", "", ("place",))
    for place, number in enumerate(numbers):
        family.add((str(place),), number)
    encode, _ = choose_encoder("")
    assert exposed(_Families(family), "")[1] == encode(_Families(family))
