"""The transport over MPI point to point, with mpi4py. All calls come from one thread.

With `survive`, MPI returns errors instead of ending the job: under `mpirun --with-ft ulfm` a request to a dead peer
fails within tens of milliseconds. The peer is then reported as `PeerLost`, and all other processes go on. Receives are
posted per source, because a receive from any source cannot say which process died.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import numpy as np
from mpi4py import MPI

from ddrl.exchange.messages import CHANNEL, Garbled, Header, HeaderFormat, Kind, Message
from ddrl.exchange.transport import Blob, Channel, Event, PeerLost

# All receives of blobs are tested at intervals of so many seconds per peer, since they need no low latency.
LIVENESS_SECONDS = 0.001
SHORTEST_LIVENESS_SECONDS = 0.005  # the shortest such interval
BUFFERS = 2  # payload buffers of a channel, used in turn
FINALIZE_SECONDS = 10.0  # time for MPI_Finalize, once all ranks have met
PAYLOAD_TAG = 1000  # tag of a payload, minus that of its header


@dataclasses.dataclass
class _Receive:
    """A posted receive of a channel: the buffers and the requests of its header and of its payload."""

    channel: Channel
    header: np.ndarray
    request: MPI.Request | None = None
    payload: np.ndarray | None = None
    payload_request: MPI.Request | None = None
    buffers: list[np.ndarray] = dataclasses.field(default_factory=list)

    def next_buffer(self) -> np.ndarray:
        """The array that takes the next payload: from the channel's `into`, or one of two buffers in turn."""
        if self.channel.into is not None:
            return self.channel.into()
        if not self.buffers:
            self.buffers = [np.empty(self.channel.floats, np.float32) for _ in range(BUFFERS)]
        self.buffers.reverse()
        return self.buffers[0]


class _Outgoing(NamedTuple):
    """A message that is ready to be sent: the bytes of its header, and its borrowed payload."""

    header: np.ndarray
    payload: np.ndarray | None


class JobRevoked(Exception):
    """Another rank has ended the job by revoking the communicator, as after the death of the chief or a server."""


class MpiTransport:
    """A transport over MPI; its interface is `ddrl.exchange.transport.Transport`.

    A peer is named by its rank in `comm` at the start.

    Args:
        comm: communicator of the job.
        workers: number of workers, which sets the size of the bitmaps in the headers.
        survive: whether to report dead peers instead of aborting (needs ULFM).
    """

    remote = True

    def __init__(self, comm: MPI.Comm, workers: int, *, survive: bool = False):
        self.comm, self.rank = comm, comm.Get_rank()
        self.format, self.survive = HeaderFormat(workers), survive
        if survive:
            comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.lost: set[int] = set()
        self._events: deque[Event] = deque()
        self._receives: list[_Receive] = []
        self._handled: list[_Receive] = []
        self._sends: list[tuple[MPI.Request, int, Any]] = []
        self._mailbox: dict[tuple[int, Kind], list] = {}
        others = (rank for rank in range(comm.Get_size()) if rank != self.rank)
        self._incoming: dict[int, tuple[int, np.ndarray, MPI.Request]] = {}
        self._blobs: list[_Receive] = []
        for peer in others:
            self._blobs.append(self._blob_receive(peer))
        self._next_liveness = 0.0

    def open(self, channels: Iterable[Channel]) -> None:
        for channel in channels:
            if channel.peer == self.rank:
                continue  # messages between roles of one process need no receive
            receive = _Receive(channel, np.empty(self.format.nbytes, np.uint8))
            self._post(receive)
            self._receives.append(receive)

    def send(self, items: Iterable[Message | Blob]) -> None:
        last: Message | None = None
        outgoing: _Outgoing | None = None
        for message in items:
            if message.peer in self.lost:
                continue
            if message.peer == self.rank:
                self._events.append(message)  # from one role to another in this same process
                continue
            if isinstance(message, Blob):
                self._send_blob(message)
                continue
            if (
                outgoing is None
                or last is None
                or last.header is not message.header
                or last.payload is not message.payload
            ):
                outgoing = _Outgoing(self._encode(message.header), message.payload)
            last = message
            if message.newest_only:
                self._send_newest(message.peer, message.header.kind, outgoing)
            else:
                self._start(message.peer, message.header.kind, outgoing)

    def poll(self) -> list[Event]:
        for receive in self._handled:
            self._post(receive)
        self._handled.clear()
        self._progress_sends()
        for receive in self._receives:
            if self._arrived(receive):
                self._deliver(receive)
        now = time.monotonic()
        if now >= self._next_liveness:
            self._next_liveness = now + max(SHORTEST_LIVENESS_SECONDS, LIVENESS_SECONDS * len(self._blobs))
            self._poll_blobs()
        if not self._events:
            return []
        events = list(self._events)
        self._events.clear()
        return events

    def pending(self) -> bool:
        return bool(self._events)

    def flush(self, timeout: float) -> bool:
        """Waits until everything is sent, but at most `timeout` seconds; returns whether everything is sent."""
        deadline = time.monotonic() + timeout
        with contextlib.suppress(JobRevoked):  # then nothing more is sent
            while self._sends and time.monotonic() < deadline:
                self._poll_blobs()  # tells of dead peers, to whom nothing more is sent
                self._progress_sends()
                time.sleep(0.0005)
        return not self._sends

    def revoke(self) -> None:
        """Ends the job for all ranks, if it survives deaths: every rank's next MPI call raises `JobRevoked`."""
        if self.survive:
            self.comm.Revoke()

    def close(self) -> None:
        """Cancels the posted receives; the communicator can still be used for collective operations."""
        requests = [receive.request for receive in self._receives + self._blobs]
        requests += [receive.payload_request for receive in self._receives]
        requests += [request for _, _, request in self._incoming.values()]
        for request in requests:
            if request is not None and request != MPI.REQUEST_NULL:
                try:
                    request.Cancel()
                    request.Free()
                except MPI.Exception:
                    pass  # the peer is dead: there is nothing to cancel
        self._receives, self._blobs = [], []

    def _send_blob(self, blob: Blob) -> None:
        self.send([Message(blob.peer, Header(Kind.BLOB, step=blob.topic, count=len(blob.data)))])
        data = np.frombuffer(blob.data or b"\0", np.uint8)
        self._isend(blob.peer, Kind.BLOB_BYTES, data)

    def _blob_receive(self, peer: int) -> _Receive:
        receive = _Receive(Channel(peer, Kind.BLOB), np.empty(self.format.nbytes, np.uint8))
        self._post(receive)
        return receive

    def _post(self, receive: _Receive) -> None:
        peer, tag = receive.channel.peer, CHANNEL[receive.channel.kind]
        receive.request = None
        if peer in self.lost:
            return
        try:
            if receive.channel.floats:
                receive.payload = receive.next_buffer()
                receive.payload_request = self.comm.Irecv([receive.payload, MPI.FLOAT], peer, tag + PAYLOAD_TAG)
            receive.request = self.comm.Irecv([receive.header, MPI.BYTE], peer, tag)
        except MPI.Exception as error:
            self._failed(error, peer)

    def _arrived(self, receive: _Receive) -> bool:
        peer = receive.channel.peer
        if receive.request is None or not self._test(receive.request, peer):
            return False
        return receive.payload_request is None or self._test(receive.payload_request, peer)

    def _test(self, request: MPI.Request, peer: int) -> bool:
        """Whether a request is complete. Requests are tested one by one: Testsome loses the index of a failed one."""
        try:
            return request.Test()
        except MPI.Exception as error:
            self._failed(error, peer)
            return False

    def _failed(self, error: MPI.Exception, peer: int) -> None:
        kind = error.Get_error_class()
        if kind == MPI.ERR_REVOKED:
            raise JobRevoked from None
        if not self.survive or kind not in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING):
            raise error
        if peer in self.lost:
            return
        self.lost.add(peer)
        for receive in self._receives + self._blobs:
            if receive.channel.peer == peer:
                receive.request = None
        self._incoming.pop(peer, None)
        for key in [key for key in self._mailbox if key[0] == peer]:
            del self._mailbox[key]
        self._events.append(PeerLost(peer))

    def _deliver(self, receive: _Receive) -> None:
        header = self._decode(receive)
        self._events.append(Message(receive.channel.peer, header, receive.payload))
        receive.request = None
        self._handled.append(receive)  # posted again at the next poll, when the roles have handled the message

    def _poll_blobs(self) -> None:
        for receive in self._blobs:
            peer = receive.channel.peer
            if peer in self._incoming:
                topic, data, request = self._incoming[peer]
                if self._test(request, peer):
                    del self._incoming[peer]
                    self._events.append(Blob(peer, topic, data.tobytes()))
                    self._post(receive)
            elif receive.request is not None and self._test(receive.request, peer):
                self._receive_bytes(receive)

    def _receive_bytes(self, receive: _Receive) -> None:
        header, peer = self._decode(receive), receive.channel.peer
        data = np.empty(max(1, header.count), np.uint8)
        try:
            request = self.comm.Irecv([data, MPI.BYTE], peer, Kind.BLOB_BYTES)
        except MPI.Exception as error:
            self._failed(error, peer)
            return
        self._incoming[peer] = (header.step, data[: header.count], request)
        receive.request = None
        self._next_liveness = 0.0

    def _decode(self, receive: _Receive) -> Header:
        try:
            return self.format.decode(receive.header.data)
        except ValueError as error:
            text = f"rank {receive.channel.peer} sent an unreadable message ({error})"
            raise Garbled(f"{text}: do all nodes run the same version of ddrl?") from error

    def _encode(self, header: Header) -> np.ndarray:
        data = np.empty(self.format.nbytes, np.uint8)
        self.format.encode_into(header, data.data)
        return data

    def _start(self, peer: int, kind: Kind, outgoing: _Outgoing) -> MPI.Request | None:
        """Starts to send header and payload; returns the request of the payload, or of the header if it is alone."""
        tag = CHANNEL[kind]
        request = self._isend(peer, tag, outgoing.header)
        if outgoing.payload is not None:
            request = self._isend(peer, tag + PAYLOAD_TAG, outgoing.payload)
        return request

    def _isend(self, peer: int, tag: int, data: np.ndarray) -> MPI.Request | None:
        try:
            request = self.comm.Isend(data, peer, tag)
        except MPI.Exception as error:
            self._failed(error, peer)
            return None
        self._sends.append((request, peer, data))  # the entry keeps the data alive
        return request

    def _send_newest(self, peer: int, kind: Kind, outgoing: _Outgoing) -> None:
        """Sends a message at once, or after the one of that kind to that peer that is still in flight.

        At most one message waits behind the one in flight, and a newer one replaces it.
        """
        box = self._mailbox.get((peer, kind))
        if box is not None and not self._sent(box[0], peer):
            box[1] = outgoing
            return
        request = self._start(peer, kind, outgoing)
        if request is not None:
            self._mailbox[peer, kind] = [request, None]

    def _sent(self, request: MPI.Request, peer: int) -> bool:
        """Whether a send is complete.

        A send to a dead peer just stays under way, and the receives from that peer tell of its death: if a test found a
        send failed, Open MPI would free its request, and then end this process if the network completed it after all.
        """
        return request.Get_status() and self._test(request, peer)

    def _waits(self, request: MPI.Request, peer: int) -> bool:
        """Whether a send is still under way to a peer that is alive."""
        return peer not in self.lost and not self._sent(request, peer)

    def _progress_sends(self) -> None:
        if not self._sends:
            return
        self._sends = [send for send in self._sends if self._waits(*send[:2])]
        for (peer, kind), box in list(self._mailbox.items()):
            if box[1] is not None and self._sent(box[0], peer):
                outgoing, box[1] = box[1], None
                box[0] = self._start(peer, kind, outgoing) or box[0]


def leave(
    comm: MPI.Comm,
    status: int,
    survive: bool,
    met: Callable[[], None] = lambda: None,
    at_end: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Ends this process, once all ranks have met here, so that mpirun exits with `status`.

    In a job that survives deaths, all ranks shrink the communicator, meet at a barrier, and call `os._exit`, whether
    they have seen a death or not, because some of them may not have seen it. `MPI_Finalize` can hang after a death in a
    job on several nodes. Python's own shutdown is left out: it waits for all libraries' threads, and can hang too.

    Args:
        comm: communicator of all ranks.
        status: exit status of this process.
        survive: whether the job survives deaths of ranks.
        met: called when all ranks have met here.
        at_end: called last, when the other ranks need nothing more from this one.
    """

    def end() -> NoReturn:
        code = status
        try:
            at_end()
        except Exception:  # noqa: BLE001  # whatever it is, the process must leave
            traceback.print_exc()
            code = status or 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    with contextlib.suppress(*([MPI.Exception] if survive else [])):  # another rank may die right now
        (comm.Shrink() if survive else comm).Barrier()
    met()
    if not survive:
        late = threading.Timer(FINALIZE_SECONDS, end)
        late.start()
        _finalize()
        late.cancel()
        late.join()  # if the timer has already run out, its thread ends this process
    end()


def _finalize() -> None:
    """Calls MPI_Finalize while other threads run: mpi4py's own call would hold the global interpreter lock."""
    ctypes.CDLL(MPI.__file__).MPI_Finalize()
