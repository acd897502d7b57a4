"""Headers on the wire: there and back, and what is none."""

from __future__ import annotations

import pytest

from ddrl.exchange.messages import Flag, Header, HeaderFormat, Kind

FORMAT = HeaderFormat(70)
HEADER = Header(Kind.COMMIT, 1, 2, 3, 4, Flag.STOP, 5, 0.5, 2.0, 0.25, members=1 << 69, refused=3)


def encoded() -> bytearray:
    buffer = bytearray(FORMAT.nbytes)
    FORMAT.encode_into(HEADER, memoryview(buffer))
    return buffer


def test_there_and_back():
    assert FORMAT.decode(memoryview(encoded())) == HEADER


@pytest.mark.parametrize("length", [0, 7, 79, 80, FORMAT.nbytes - 1])
def test_a_header_that_is_cut_off_is_refused(length):
    with pytest.raises(ValueError, match=f"a header has {length} bytes, and those of this job have {FORMAT.nbytes}"):
        FORMAT.decode(memoryview(encoded()[:length]))


def test_an_unknown_kind_is_refused():
    buffer = encoded()
    buffer[0] = 200
    with pytest.raises(ValueError, match="200"):
        FORMAT.decode(memoryview(buffer))
