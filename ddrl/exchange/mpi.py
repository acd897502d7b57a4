"""The transport over MPI point to point, with mpi4py. All calls come from one thread.

With `survive`, errors are returned: under `mpirun --with-ft ulfm` a dead peer shows up as a failed request
(seen in tens of milliseconds) and is reported as `PeerLost`, while everyone else goes on. Receives are posted
per source, because a receive from any source cannot say who died.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import defaultdict, deque
from collections.abc import Iterable

import numpy as np
from mpi4py import MPI

from ddrl.exchange.messages import CHANNEL, HeaderFormat, Kind, Message
from ddrl.exchange.transport import Blob, Channel, Event, PeerLost, control_header

LIVENESS_SECONDS = 0.005  # control receives are tested this often at most: they need no low latency
BUFFERS = 2  # receive buffers per channel, used in turn


@dataclasses.dataclass
class _Send:
    """A buffer on its way to some peers; it goes back to the pool when all have it."""

    data: np.ndarray
    pending: int = 0


@dataclasses.dataclass
class _Receive:
    """A posted receive and its buffers."""

    peer: int
    tag: int
    buffers: list[np.ndarray]
    request: MPI.Request | None = None
    turn: int = 0


class JobRevoked(Exception):
    """Another rank saw the chief or a server die, and called the job off."""


class MpiTransport:
    """See `ddrl.exchange.transport.Transport`. A peer is its rank in `comm` at the start.

    Args:
        comm: communicator of the job.
        workers: number of workers, for the size of the bitmaps in the headers.
        survive: report dead peers instead of aborting (needs ULFM).
        watched: peers whose death this process must see at once (default: all others).
    """

    def __init__(self, comm: MPI.Comm, workers: int, *, survive: bool = False, watched: Iterable[int] | None = None):
        self.comm, self.rank = comm, comm.Get_rank()
        self.format, self.survive = HeaderFormat(workers), survive
        if survive:
            comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.lost: set[int] = set()
        self.bytes_sent = 0
        self._events: deque[Event] = deque()
        self._receives: list[_Receive] = []
        self._sends: deque[tuple[MPI.Request, int, _Send]] = deque()
        self._pool: dict[int, list[np.ndarray]] = defaultdict(list)
        self._mailbox: dict[tuple[int, int], list] = {}
        others = (rank for rank in range(comm.Get_size()) if rank != self.rank)
        self._blobs = [self._blob_receive(peer) for peer in (others if watched is None else watched)]
        self._incoming: dict[int, tuple[int, np.ndarray, MPI.Request]] = {}
        self._next_liveness = 0.0

    def open(self, channels: Iterable[Channel]) -> None:
        for channel in channels:
            size = self.format.nbytes + 4 * channel.floats
            buffers = [np.empty((size + 7) // 8, np.int64).view(np.uint8)[:size] for _ in range(BUFFERS)]
            receive = _Receive(channel.peer, CHANNEL[channel.kind], buffers)
            self._post(receive)
            self._receives.append(receive)

    def send(self, items: Iterable[Message | Blob]) -> None:
        encoded: tuple[object, object, _Send] | None = None
        for message in items:
            if message.peer in self.lost:
                continue
            if message.peer == self.rank or isinstance(message, Blob):
                self._send_otherwise(message)
                continue
            if encoded is None or encoded[0] is not message.header or encoded[1] is not message.payload:
                encoded = (message.header, message.payload, self._encode(message))
            buffer = encoded[2]
            buffer.pending += 1
            tag = CHANNEL[message.header.kind]
            if message.newest_only:
                self._send_newest(message.peer, tag, buffer)
            else:
                self._start(message.peer, tag, buffer)

    def poll(self) -> list[Event]:
        self._progress_sends()
        for receive in self._receives:
            if receive.request is not None and self._test(receive.request, receive.peer):
                self._deliver(receive)
        now = time.monotonic()
        if now >= self._next_liveness:
            self._next_liveness = now + LIVENESS_SECONDS
            self._poll_blobs()
        if not self._events:
            return []
        events = list(self._events)
        self._events.clear()
        return events

    def flush(self, timeout: float) -> bool:
        """Waits until everything is sent, at most `timeout` seconds; True if it is."""
        deadline = time.monotonic() + timeout
        while self._sends and time.monotonic() < deadline:
            self._progress_sends()
            time.sleep(0.0005)
        return not self._sends

    def revoke(self) -> None:
        """Calls the job off: every rank's next MPI call fails with `JobRevoked`."""
        if self.survive:
            self.comm.Revoke()

    def close(self) -> None:
        """Withdraws the posted receives; the communicator stays usable for collectives."""
        requests = [r.request for r in self._receives + self._blobs if r.request is not None]
        requests += [request for _, _, request in self._incoming.values()]
        for request in requests:
            try:
                request.Cancel()
                request.Free()
            except MPI.Exception:
                pass  # the peer is dead: nothing to withdraw
        self._receives, self._blobs = [], []

    def _send_otherwise(self, item: Message | Blob) -> None:
        """Blobs, and whatever goes from one role to another in this same process."""
        if item.peer == self.rank:
            self._events.append(item)
            return
        self.send([Message(item.peer, control_header(item.topic, len(item.data)))])
        self._start(item.peer, Kind.BLOB_BYTES, _Send(np.frombuffer(item.data or b"\0", np.uint8), 1))

    def _blob_receive(self, peer: int) -> _Receive:
        receive = _Receive(peer, Kind.BLOB, [np.empty(self.format.nbytes, np.uint8)])
        self._post(receive)
        return receive

    def _post(self, receive: _Receive) -> None:
        receive.request = None
        if receive.peer in self.lost:
            return
        receive.turn = (receive.turn + 1) % len(receive.buffers)
        try:
            receive.request = self.comm.Irecv([receive.buffers[receive.turn], MPI.BYTE], receive.peer, receive.tag)
        except MPI.Exception as error:
            self._failed(error, receive.peer)

    def _test(self, request: MPI.Request, peer: int) -> bool:
        """Whether a request is complete. (Testsome would lose the index of a failed one.)"""
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
            if receive.peer == peer:
                receive.request = None
        self._incoming.pop(peer, None)
        for key in [key for key in self._mailbox if key[0] == peer]:
            del self._mailbox[key]
        self._events.append(PeerLost(peer))

    def _deliver(self, receive: _Receive) -> None:
        buffer = receive.buffers[receive.turn]
        header = self.format.decode(memoryview(buffer))
        payload = buffer[self.format.nbytes :].view(np.float32) if len(buffer) > self.format.nbytes else None
        self._events.append(Message(receive.peer, header, payload))
        self._post(receive)

    def _poll_blobs(self) -> None:
        for receive in self._blobs:
            peer = receive.peer
            if peer in self._incoming:
                topic, data, request = self._incoming[peer]
                if self._test(request, peer):
                    del self._incoming[peer]
                    self._events.append(Blob(peer, topic, data.tobytes()))
                    self._post(receive)
            elif receive.request is not None and self._test(receive.request, peer):
                self._receive_bytes(receive)

    def _receive_bytes(self, receive: _Receive) -> None:
        header = self.format.decode(memoryview(receive.buffers[0]))
        data = np.empty(max(1, header.count), np.uint8)
        try:
            request = self.comm.Irecv([data, MPI.BYTE], receive.peer, Kind.BLOB_BYTES)
        except MPI.Exception as error:
            self._failed(error, receive.peer)
            return
        self._incoming[receive.peer] = (header.step, data[: header.count], request)
        receive.request = None
        self._next_liveness = 0.0

    def _encode(self, message: Message) -> _Send:
        floats = 0 if message.payload is None else len(message.payload)
        size = self.format.nbytes + 4 * floats
        pool = self._pool[size]
        data = pool.pop() if pool else np.empty((size + 7) // 8, np.int64).view(np.uint8)[:size]
        self.format.encode_into(message.header, memoryview(data))
        if floats:
            data[self.format.nbytes :].view(np.float32)[:] = message.payload
        return _Send(data)

    def _start(self, peer: int, tag: int, buffer: _Send) -> None:
        try:
            request = self.comm.Isend([buffer.data, MPI.BYTE], peer, tag)
        except MPI.Exception as error:
            self._failed(error, peer)
            self._release(buffer)
            return
        self.bytes_sent += buffer.data.nbytes
        self._sends.append((request, peer, buffer))

    def _send_newest(self, peer: int, tag: int, buffer: _Send) -> None:
        """One such send per peer is outstanding; what waits behind it is replaced by what is newer."""
        box = self._mailbox.get((peer, tag))
        if box is not None and not self._test(box[0], peer):
            if box[1] is not None:
                self._release(box[1])
            box[1] = buffer
            return
        self._start(peer, tag, buffer)
        if peer not in self.lost:
            self._mailbox[peer, tag] = [self._sends[-1][0], None]

    def _progress_sends(self) -> None:
        for _ in range(len(self._sends)):
            request, peer, buffer = self._sends.popleft()
            if peer in self.lost or self._test(request, peer) or peer in self.lost:
                self._release(buffer)
            else:
                self._sends.append((request, peer, buffer))
        for (peer, tag), box in list(self._mailbox.items()):
            if box[1] is not None and self._test(box[0], peer):
                buffer, box[1] = box[1], None
                self._start(peer, tag, buffer)
                box[0] = self._sends[-1][0]

    def _release(self, buffer: _Send) -> None:
        buffer.pending -= 1
        if buffer.pending == 0 and buffer.data.flags.writeable:
            self._pool[len(buffer.data)].append(buffer.data)


def leave(comm: MPI.Comm, after_failure: bool) -> None:
    """Ends this rank's part in the job so that mpirun ends with status 0; does not return after a failure.

    After a death `MPI_Finalize` can hang on several nodes; shrink, barrier and `_exit` end the job at once.
    """
    if not after_failure:
        return
    survivors = comm.Shrink()
    survivors.Barrier()
    os._exit(0)
