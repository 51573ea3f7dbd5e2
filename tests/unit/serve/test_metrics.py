"""Metrics: text that Prometheus reads, named by the rules, bounded whatever the facts are."""

from __future__ import annotations

import re

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from frazil.serve.grpc.calls import Counters
from frazil.serve.grpc.codec import Code
from frazil.serve.metrics import (
    METRICS,
    SAMPLES_MAX,
    Metric,
    at,
    by_key,
    count_of,
    metrics_text,
    one_of,
    port_facts,
    render,
    share,
    total,
)

UNITS = ("_seconds", "_bytes", "_ratio", "_total")


def parsed(text):
    """Return {name: {labels: value}} as Prometheus reads the text."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def shown(read, facts, scale=1.0):
    """Render one gauge and read it back."""
    return parsed(render([Metric("x", "gauge", "A text.", read, scale)], facts)).get("x", {})


def test_readers_find_their_numbers():
    """Each reader gives the lines it promises, and none where the tree does not go so far."""
    facts = {
        "a": {"b": 2, "t": True, "none": None, "text": "red"},
        "by": {"p": 1, "q": 2.5, "bad": "x"},
        "stores": [{"n": 1}, {"n": 2}, {}],
        "topics": {"x": {"n": 5}, "y": {"n": 6}},
    }
    assert shown(at("a.b"), facts, 0.5) == {(): 1.0}
    assert shown(at("a.t"), facts) == {(): 1.0}
    for path in ("a.none", "a.text", "a.b.c", "zzz", "a"):
        assert shown(at(path), facts) == {}
    assert shown(by_key("k", "by"), facts) == {(("k", "p"),): 1.0, (("k", "q"),): 2.5}
    assert shown(total("stores", "n"), facts) == {(): 3.0}
    assert shown(total("topics", "n"), facts) == {(): 11.0}
    assert shown(total("zzz", "n"), facts) == {}
    assert shown(count_of("stores"), facts) == {(): 3.0}
    assert shown(count_of("a.b"), facts) == {}
    assert shown(share("by.p", "a.b"), facts) == {(): 0.5}
    assert shown(share("by.p", "zzz"), facts) == {}
    assert shown(one_of("z", "a.text", "green", "red"), facts) == {
        (("z", "green"),): 0.0,
        (("z", "red"),): 1.0,
    }


@given(st.text(max_size=100))
def test_a_label_cannot_break_out(text):
    """Quotes, backslashes and line breaks in a label stay in the label, cut at 64 characters."""
    found = shown(by_key("k", "m"), {"m": {text: 1}})
    assert found == {(("k", text[:64]),): 1.0}


def test_a_label_with_endless_values_is_bounded():
    """Ten thousand keys are 64 lines."""
    assert (
        len(shown(by_key("k", "m"), {"m": {f"k{n:05}": n for n in range(10_000)}})) == SAMPLES_MAX
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "7", None, b"7", []])
def test_what_is_no_number_is_left_out(value):
    """A fact that is missing or strange is no line, and never a wrong one."""
    assert shown(at("x"), {"x": value}) == {}


def test_names_say_what_and_in_which_unit():
    """Names are unique and ours; counters, and only they, end in _total; texts are sentences."""
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"frazil(_[a-z]+)+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert re.fullmatch(r"[A-Z1].*\.", metric.text)
        assert not re.search(r"_(ms|us|percent|kb|mb|count)\b", metric.name)
        if re.search(r"bytes|seconds", metric.name):
            assert metric.name.endswith(UNITS)


def test_no_label_is_chosen_by_others():
    """The labels of all metrics are a short list of words, none of which names a topic or client."""
    facts = {"ports": {"data": port_facts(Counters())}}
    labels = set()
    for metric in METRICS:
        labels |= {label for names, _ in metric.read(facts) for label, _ in names}
    assert labels == {"port", "status", "quantile"}
    source = {cell.cell_contents for m in METRICS for cell in (m.read.__closure__ or ())}
    words = {text for text in source if isinstance(text, str) and re.fullmatch("[a-z]+", text)}
    assert not words & {"topic", "key", "client", "principal", "peer", "offset", "subscription"}


def test_a_listeners_counters_are_all_there():
    """Every counter of a server is a metric by port, and statuses go by their names."""
    counters = Counters()
    names = [name for name in attrs.fields_dict(Counters) if name != "statuses"]
    for number, name in enumerate(names, 1):
        setattr(counters, name, number)
    counters.statuses[Code.UNAVAILABLE] = 77
    found = parsed(
        metrics_text({"ports": {"admin": port_facts(Counters()), "data": port_facts(counters)}})
    )
    values = {
        value
        for lines in found.values()
        for labels, value in lines.items()
        if ("port", "data") in labels
    }
    assert values >= set(range(1, len(names) + 1))
    ended = found["frazil_server_calls_ended_total"]
    assert ended[("port", "data"), ("status", "unavailable")] == 77
    assert ended[("port", "admin"), ("status", "unavailable")] == 0
    assert len(ended) == 2 * len(Code)


def test_without_facts_there_is_nothing():
    """An empty tree is an empty page, not an error."""
    assert metrics_text({}) == ""


_TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda kids: (
        st.lists(kids, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["tiers", "pressure", "disk", "journal", "lake", "totals", "health", "upkeep"]
            ),
            kids,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(_TREES)
def test_any_facts_render_to_text_that_parses(tree):
    """Whatever the engine's facts are, the page can be read."""
    text = metrics_text({"engine": tree, "guard": tree, "subscriptions": tree})
    assert set(parsed(text)) <= {metric.name for metric in METRICS}
