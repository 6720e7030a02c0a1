"""Share links: what a signature covers, and what a reader cannot change."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.web.share_links import ShareLink, check_share, page_share_path, share_path

SECRET = "0123456789abcdef0123456789abcdef"
END_S = 1_800_000_000
LINK = ShareLink("ranker", END_S, "2026-11-24T12:00:00Z")


def _share(link: ShareLink, secret: str = SECRET) -> str:
    (share,) = parse_qs(urlsplit(share_path(secret, link)).query)["share"]
    return share


SHARE = _share(LINK)


@pytest.mark.parametrize("name", ["ranker", "a/b", "a/verdict", "a/../b", "50 % more", "é 1", "a?b#c&d=e", "a+b"])
@pytest.mark.parametrize("as_of", ["", "2026-11-24T12:00:00Z", "2026-11-24T12:00:00+01:00"])
def test_a_link_opens_its_experiment_until_its_end(name: str, as_of: str) -> None:
    """The name is one segment of the path; the query has the time unchanged."""
    address = urlsplit(share_path(SECRET, ShareLink(name, END_S, as_of)))
    query = parse_qs(address.query)
    (segment,) = address.path.removeprefix("/experiments/").split("/")
    assert unquote(segment) == name
    assert query.get("as_of", [""]) == [as_of]
    (share,) = query["share"]
    assert check_share(SECRET, share, name, as_of, END_S - 0.1) == "valid"
    assert check_share(SECRET, share, name, as_of, END_S) == "expired"


@pytest.mark.parametrize(
    ("share", "experiment", "as_of"),
    [
        (SHARE, "ranker2", LINK.as_of),
        (SHARE, "Ranker", LINK.as_of),
        (SHARE, "ranker/verdict", LINK.as_of),
        (SHARE, "", LINK.as_of),
        (SHARE, "ranker", ""),
        (SHARE, "ranker", "2026-11-24T13:00:00Z"),
        (SHARE, "ranker", "2026-11-24T12:00Z"),
        (SHARE.replace(str(END_S), str(END_S + 1)), "ranker", LINK.as_of),
        (SHARE.replace(str(END_S), f"0{END_S}"), "ranker", LINK.as_of),
        (SHARE.replace(str(END_S), "１８００００００００"), "ranker", LINK.as_of),
        (SHARE.replace(str(END_S), "-1"), "ranker", LINK.as_of),
        (SHARE.replace("v1", "v2"), "ranker", LINK.as_of),
        (SHARE[:-1], "ranker", LINK.as_of),
        (SHARE[:-10], "ranker", LINK.as_of),
        (SHARE + "=", "ranker", LINK.as_of),
        (SHARE + "\n", "ranker", LINK.as_of),
        (SHARE[:-1] + "é", "ranker", LINK.as_of),
        (SHARE[:-1] + "\udcff", "ranker", LINK.as_of),
        (f"v1.{END_S}.", "ranker", LINK.as_of),
        (f"v1.{END_S}", "ranker", LINK.as_of),
        (f"v1.{'9' * 5000}.{SHARE[-43:]}", "ranker", LINK.as_of),
        ("", "ranker", LINK.as_of),
    ],
)
def test_a_changed_link_is_wrong(share: str, experiment: str, as_of: str) -> None:
    """Also if only the end is later, or a character is missing; the state is never "expired"."""
    assert check_share(SECRET, share, experiment, as_of, END_S - 1) == "wrong"
    assert check_share(SECRET, share, experiment, as_of, END_S + 1) == "wrong"


def test_a_link_of_another_secret_is_wrong() -> None:
    """So a new secret ends all links."""
    assert check_share(SECRET, _share(LINK, SECRET[::-1]), "ranker", LINK.as_of, END_S - 1) == "wrong"


def test_no_other_last_character_is_the_same_signature() -> None:
    """The last character of base64 has unused bits."""
    others = [SHARE[:-1] + last for last in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"]
    valid = [share for share in others if check_share(SECRET, share, "ranker", LINK.as_of, 0) == "valid"]
    assert valid == [SHARE]


def test_the_link_on_a_page_is_the_same_for_a_day_and_valid_for_a_week() -> None:
    """From midnight to midnight in UTC."""
    midnight_s = END_S // 86_400 * 86_400
    first, last = (page_share_path(SECRET, "a", "", midnight_s + s) for s in (0, 86_399.9))
    assert first == last != page_share_path(SECRET, "a", "", midnight_s + 86_400)
    (share,) = parse_qs(urlsplit(last).query)["share"]
    assert check_share(SECRET, share, "a", "", midnight_s + 8 * 86_400 - 1) == "valid"
    assert check_share(SECRET, share, "a", "", midnight_s + 8 * 86_400) == "expired"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ShareLink("a1", END_S), ShareLink("a", int(f"1{END_S}"))),
        (ShareLink("a", END_S, "1"), ShareLink("a", int(f"{END_S}1"))),
        (ShareLink('a", 1', END_S), ShareLink("a", END_S)),
        (ShareLink("a\\", END_S), ShareLink("a\\\\", END_S)),
        (ShareLink("é", END_S), ShareLink("e\u0301", END_S)),
        (ShareLink("\\u00e9", END_S), ShareLink("é", END_S)),
    ],
)
def test_links_whose_texts_run_together_have_different_signatures(first: ShareLink, second: ShareLink) -> None:
    """Digits of a name are not those of the end."""
    assert _share(first).rpartition(".")[2] != _share(second).rpartition(".")[2]


@given(*[st.tuples(st.text(), st.integers(0, 10**11), st.text())] * 2)
def test_different_links_have_different_signatures(first: tuple[str, int, str], second: tuple[str, int, str]) -> None:
    """Whatever the names and times contain."""
    signatures = [_share(ShareLink(*fields)).rpartition(".")[2] for fields in (first, second)]
    assert (signatures[0] == signatures[1]) == (first == second)
