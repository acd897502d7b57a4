from __future__ import annotations

import random
import re

import pytest

from cluster.hostlist import MOST, expand, expand_counts


@pytest.mark.parametrize(
    "text, hosts",
    [
        ("n1", "n1"),
        ("login", "login"),
        ("a,b", "a b"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[08-10]", "n08 n09 n10"),
        ("n[8-10]", "n8 n9 n10"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("n[5]", "n5"),
        ("p[0900-0902,12],g1", "p0900 p0901 p0902 p12 g1"),
        ("g1,p[1,3,5-6]", "g1 p1 p3 p5 p6"),
        ("r[1-2]n[01-03]", "r1n01 r1n02 r1n03 r2n01 r2n02 r2n03"),
        ("r[1-2]-n[1-2]-ib0", "r1-n1-ib0 r1-n2-ib0 r2-n1-ib0 r2-n2-ib0"),
        ("[1-2]", "1 2"),
        ("c[1-2][3-4]", "c13 c14 c23 c24"),
        ("node-3.site.org", "node-3.site.org"),
        (" a , n[1 , 3-4] ", "a n1 n3 n4"),
        ("n2,n1", "n2 n1"),
        ("n1,n1", "n1 n1"),
    ],
)
def test_lists(text, hosts):
    assert expand(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("a,,b", "empty name"),
        ("a,", "empty name"),
        ("n[1-2", "not closed"),
        ("n1-2]", "one too many"),
        ("n[[1]]", "nested brackets"),
        ("n[]", "'' in brackets"),
        ("n[1,]", "'' in brackets"),
        ("n[a-b]", "'a-b' in brackets"),
        ("n[1-2-3]", "'1-2-3' in brackets"),
        ("n[-2]", "'-2' in brackets"),
        ("n[3-1]", "backwards: write 1-3"),
        ("a b", "'a b'"),
        ("n$(x)", "not part of a host name"),
        ("n[1-1000000000]", f"more than {MOST}"),
        ("n[\u00b2]", "in brackets"),
        ("n[\u0661-\u0663]", "in brackets"),
        (f"n[{'0' * 100_000}1-65000]", "in brackets"),
        (f"n[{','.join(['0-65535'] * 16_000)}]", f"hosts, more than {MOST}"),
        ("n" + "[0-65535]" * 10_000, f"hosts, more than {MOST}"),
        (f"{'a' * 100_000}[0-65535]", "more than 255 letters"),
        ("n[1-999][1-999]", f"998001 hosts, more than {MOST}"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(text, why):
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        expand(text)
    assert "\n" not in str(caught.value) and (not text or text[:9] in str(caught.value))
    assert len(str(caught.value)) < 300


def test_ranges_of_a_list_expand_to_what_they_were_made_of():
    draw = random.Random(3)
    for _ in range(200):
        text, hosts = [], []
        for _ in range(draw.randint(1, 4)):
            prefix, width = draw.choice(["n", "gpu-", "r2c"]), draw.randint(1, 4)
            start = draw.randrange(10**width)
            numbers = range(start, start + draw.randint(1, 12))
            text.append(f"{prefix}[{start:0{width}d}-{numbers[-1]:0{width}d}]")
            hosts += [f"{prefix}{number:0{width}d}" for number in numbers]
        assert expand(",".join(text)) == tuple(hosts)
        assert expand(",".join(hosts)) == tuple(hosts)


@pytest.mark.parametrize(
    "text, counts",
    [("4", (4,)), ("2(x3),1", (2, 2, 2, 1)), ("1,3(x2)", (1, 3, 3)), ("16(x1)", (16,)), (" 2 , 1 ", (2, 1))],
)
def test_counts(text, counts):
    assert expand_counts(text) == counts


@pytest.mark.parametrize("text", ["", "two", "2(3)", "2(x)", "2(x0)", "-1", "2,,1", f"1(x{MOST + 1})"])
def test_counts_that_cannot_be_read(text):
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        expand_counts(text)
