"""A real Slurm of several nodes on this machine, for the tests: started in a second, taken down without a trace.

Each node is a slurmd with a host name, /etc/hosts and /dev/shm of its own. All daemons run in the foreground, as
children; what their jobs start is found by SLURM_CONF in its environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")
START_SECONDS = 60.0
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
FOREIGN = re.compile(r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|PMI|PMIX|OMPI_COMM|DDRL)_")
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={state}/munge.socket,cred_expire=5
StateSaveLocation={state}/ctld
SlurmdSpoolDir={state}/spool/%n
TmpFS={state}/tmp/%n
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd-%n.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout=10
KillWait=15
MinJobAge=1800
"""
PARTITIONS = {
    "main": "Default=YES PreemptMode=OFF",
    "low": "PriorityTier=1 PreemptMode=REQUEUE GraceTime=30",
    "high": "PriorityTier=2 PreemptMode=OFF",
}
"""Name -> settings. A job of `high` that needs the nodes of one of `low` preempts it."""
NODE = 'hostname "$1"; mount --bind "$2" /etc/hosts; mount -t tmpfs tmpfs /dev/shm; exec slurmd -D -N "$1"'


def missing() -> str:
    """Why there can be no cluster here, or nothing."""
    if os.geteuid() != 0:
        return "slurmd must be started by root"
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


class Cluster:
    """Nodes n1, n2, ... that share this machine's cores and files.

    Args:
        state: a directory that is not there yet; everything lives in it.
        nodes: how many.
        cpus: of each node; more than the machine has is allowed.
        more: a further line of slurm.conf.
    """

    def __init__(self, state: Path, nodes: int, cpus: int, more: str = ""):
        self.state, self.names = state, [f"n{i + 1}" for i in range(nodes)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        own = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        self.environment = own | {"PATH": PATH, "SLURM_CONF": str(state / "slurm.conf")}
        state.mkdir()
        host, port = os.uname().nodename, free_ports(nodes + 1, str(state))
        lines = [CONF.format(host=host, port=port, state=state), f"{more}\n"]
        hosts = ["127.0.0.1 localhost", f"127.0.0.1 {host}"]
        for i, name in enumerate(self.names, 1):
            where = f"NodeHostname={name} NodeAddr=127.0.1.{i} Port={port + i}"
            lines.append(f"NodeName={name} {where} CPUs={cpus} RealMemory=100000\n")
            hosts.append(f"127.0.1.{i} {name}")
        lines += [f"PartitionName={name} Nodes=ALL MaxTime=INFINITE {more}\n" for name, more in PARTITIONS.items()]
        (state / "slurm.conf").write_text("".join(lines))
        (state / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # else slurmd looks for systemd
        (state / "hosts").write_text("\n".join(hosts) + "\n")

    def start(self) -> Cluster:
        """Starts the daemons, and waits for all nodes."""
        state = self.state
        for name in ("munge", "ctld", *(f"{what}/{node}" for what in ("spool", "tmp") for node in self.names)):
            (state / name).mkdir(mode=0o700, parents=True)
        key = state / "munge" / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        files = [f"--{what}-file={state}/munge/munged.{what}" for what in ("pid", "log", "seed")]
        self._start("munged", "munged", "-F", "--force", f"--key-file={key}", f"--socket={state}/munge.socket", *files)
        self._wait(lambda: (state / "munge.socket").exists(), "munged")
        self._start("slurmctld", "slurmctld", "-D", "-i")
        for node in self.names:
            self.start_node(node)
        self._wait(lambda: len(self._idle()) == len(self.names), "idle nodes")
        return self

    def start_node(self, node: str) -> None:
        """Starts the slurmd of a node in namespaces of its own."""
        self._start(
            node, "unshare", "--uts", "--ipc", "--mount", "bash", "-ec", NODE, "node", node, str(self.state / "hosts")
        )

    def crash(self, node: str) -> None:
        """Kills a node with all that runs on it, as if its power failed."""
        self._daemons[node].kill()
        self._daemons[node].wait(timeout=60.0)
        for pid in list(self.processes(SLURMD_NODENAME=node)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kills jobs and daemons, and removes all."""
        for daemon in self._daemons.values():
            daemon.kill()
        for daemon in self._daemons.values():
            daemon.wait(timeout=60.0)
        end = time.monotonic() + 10.0
        while (left := list(self.processes())) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        shutil.rmtree(self.state, ignore_errors=True)

    def run(self, *argv: str, seconds: float = 100.0) -> str:
        """Output of one of Slurm's commands."""
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=seconds, check=False)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def processes(self, **variables: str) -> Iterator[int]:
        """Processes that the cluster started and that have these variables: daemons, and what is left of jobs."""
        wanted = variables | {"SLURM_CONF": self.environment["SLURM_CONF"]}
        marks = {f"{name}={value}".encode() for name, value in wanted.items()}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                # Names of processes may end in half a letter.
                state = Path("/proc", entry, "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[0]
                if state not in "ZX" and marks <= set(Path("/proc", entry, "environ").read_bytes().split(b"\0")):
                    yield int(entry)
            except OSError:
                pass

    def describe(self) -> str:
        """What there is to see of jobs, processes and daemons where something hangs."""
        lines = [self.run("squeue", "--all"), self.run("squeue", "--steps")]
        for pid in self.processes():
            with contextlib.suppress(OSError):
                where = Path("/proc", str(pid), "wchan").read_text()
                command = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                threads = len(os.listdir(f"/proc/{pid}/task"))
                lines.append(f"{pid} in {where}, {threads} threads: {command[:120]}")
        logs = sorted(self.state.glob("slurm*.log"))
        lines += [f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in logs]
        return "\n".join(lines)

    def _start(self, name: str, *argv: str) -> None:
        with (self.state / f"start-{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                argv, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.state
            )

    def _idle(self) -> list[str]:
        try:
            return [line for line in self.run("sinfo", "-h", "-p", "main", "-N", "-o", "%t").split() if line == "idle"]
        except AssertionError:
            return []  # slurmctld does not answer yet

    def _wait(self, condition, what: str) -> None:
        end = time.monotonic() + START_SECONDS
        while not condition():
            dead = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if dead or time.monotonic() > end:
                logs = [path.read_text(errors="replace")[-1500:] for path in self.state.glob("*.log")]
                raise RuntimeError("\n".join([f"no {what}; ended: {dead}", *logs]))
            time.sleep(0.05)


def free_ports(count: int, name: str) -> int:
    """The first of `count` ports in a row that nobody listens on, below those that connections get."""
    tables = "".join(Path(path).read_text() for path in ("/proc/net/tcp", "/proc/net/tcp6") if Path(path).exists())
    busy = {int(port, 16) for port in re.findall(r"\d+: [0-9A-F]+:([0-9A-F]{4}) \S+ 0A", tables)}
    offset = zlib.crc32(name.encode()) % 200
    for block in range(200):
        first = 10000 + (offset + block) % 200 * 100
        if not busy & set(range(first, first + count)):
            return first
    raise RuntimeError("no free ports")
