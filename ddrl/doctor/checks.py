"""What the facts of all ranks mean for training: pure functions from a survey to findings."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path

from cluster.roles import Assignment, gpus_of_node, place
from ddrl import rundir
from ddrl.doctor.facts import SOURCE, Place, RankFacts
from ddrl.doctor.survey import LEVELS, Finding, Findings, Level, LinkSpeed, Need, Survey, grouped
from ddrl.errors import UsageError
from ddrl.named_runs import go_on
from ddrl.placement.resources import HEAVY_RANK_BYTES, RANKS_PER_CORE, SERVER_BYTES
from ddrl.wording import counted, plural

SKEW_WARNING_SECONDS = 1.0
SKEW_PROBLEM_SECONDS = 240.0  # credentials of MUNGE, by which Slurm trusts its nodes, live five minutes
LATENCY_WARNING_SECONDS = 500e-6
BANDWIDTH_WARNING = 110e6  # bytes/s: a 1 Gbit/s Ethernet carries 117e6
SLOW_LINK = 0.25  # of the median bandwidth of its kind
SPACE_PROBLEM_BYTES = 100e6
SPACE_WARNING_BYTES = 1e9
SHARED_MEMORY_BYTES = 64e6  # containers have that little by default
LOCKED_BYTES = 64 << 20
FILES_SPARE = 256  # of a process' own, besides a connection or two for each rank


def examine(survey: Survey, need: Need) -> Findings:
    """All findings, problems first."""
    need, findings = cast(survey, need)
    findings += [finding for check in CHECKS for finding in check(survey, need)]
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def exit_status(findings: Iterable[Finding]) -> int:
    """1 when something would make training fail, else 0."""
    return int(any(finding.level == "problem" for finding in findings))


def cast(survey: Survey, need: Need) -> tuple[Need, Findings]:
    """The need with the role of each rank, if there are as many ranks as the settings need."""
    size = len(survey.ranks)
    nodes = ", ".join(f"{host} {numbers(f.rank for f in ranks)}" for host, ranks in survey.nodes.items())
    text = f"{size} on {counted(len(survey.nodes), 'node')}: {nodes}"
    findings: Findings = []
    if need.outside:
        findings.append(Finding("warning", "ranks", need.outside, "start doctor, and train, with srun or mpirun"))
    if need.sizes is None:
        note = "; give the options of `ddrl train`, too, to have them compared"
        return need, [*findings, Finding("fine", "ranks", text + note)]
    try:
        seats = [facts.seat for facts in survey.ranks]
        assignments = place(seats, need.sizes)
    except ValueError as error:
        why, _, remedy = str(error).partition("; ")
        return need, [*findings, Finding("problem", "ranks", f"{why}; {text}", remedy or "see ddrl plan")]
    need = dataclasses.replace(need, roles=tuple(assignment.role for assignment in assignments))
    need, troubles = weighed(need, assignments)
    return need, [*findings, Finding("fine", "ranks", f"{text}; {need.sizes}"), *troubles]


def weighed(need: Need, assignments: Sequence[Assignment]) -> tuple[Need, Findings]:
    """The need with the memory of each rank, if the settings say how much that is."""
    if need.memory is None:
        return need, []
    try:
        return dataclasses.replace(need, rank_bytes=tuple(need.memory(assignments))), []
    except UsageError as error:
        why, _, remedy = str(error).partition("; ")
        return need, [Finding("problem", "settings", why, remedy or "see ddrl plan")]


def check_versions(survey: Survey, need: Need) -> Findings:
    """The same software everywhere, and all of it."""
    problems = []
    for name in survey.ranks[0].versions:
        by_version = grouped(survey.ranks, lambda facts: facts.versions.get(name, "") or "nothing")
        missing = by_version.get("nothing", []) if name != "ddrl" else []
        if len(by_version) > 1:
            text = f"{name}: " + ", ".join(f"{v} on {where(ranks)}" for v, ranks in by_version.items())
            remedy = "use one installation for all ranks: the same environment, on a shared file system or copied"
            problems.append(Finding("problem", "versions", text, remedy))
        elif missing:
            problems.append(Finding("problem", "versions", f"{name} is not installed", f"pip install {name}"))
    shown = [f"{name} {v}" for name, v in survey.ranks[0].versions.items() if name != SOURCE]
    return problems or [Finding("fine", "versions", ", ".join(shown))]


def check_names(survey: Survey, need: Need) -> Findings:
    """Each machine has a name of its own, and the names have addresses on every node.

    Between machines of one name MPI looks for shared memory: Open MPI 5.0.11 starts, and hangs in its first collective
    operation. It has started without addresses, so that can be no problem of its own.
    """
    namesakes = {host: grouped(ranks, lambda facts: facts.boot_id) for host, ranks in survey.nodes.items()}
    problems = [
        Finding(
            "problem",
            "host names",
            f"{len(machines)} machines are called {host}: those of ranks "
            + " and ".join(numbers(facts.rank for facts in ranks) for ranks in machines.values()),
            "give each a name of its own (hostnamectl set-hostname NAME); MPI takes them for one, and hangs",
        )
        for host, machines in namesakes.items()
        if len(machines) > 1
    ]
    remedy = "ask the site, or add them to /etc/hosts; programs that look them up hang or fail"
    warnings = [
        Finding("warning", "host names", f"on {host} no address for {', '.join(names)}", remedy)
        for host, names in survey.unresolved.items()
        if names
    ]
    return [*problems, *warnings] or [Finding("fine", "host names", f"all resolve: {', '.join(survey.nodes)}")]


def check_network(survey: Survey, need: Need) -> Findings:
    """Latency and bandwidth between nodes, and within one."""
    hosts = {facts.rank: facts.host for facts in survey.ranks}
    findings: Findings = []
    for between in (True, False):
        links = [link for link in survey.links if (hosts[link.a] != hosts[link.b]) == between]
        if links:
            findings += _network(links, hosts, "network" if between else "within a node", between)
    return findings


def _network(links: list[LinkSpeed], hosts: dict[int, str], name: str, between: bool) -> Findings:
    middle = statistics.median(link.bandwidth for link in links)
    findings = []
    for link in links:
        pair = f"{hosts[link.a]} - {hosts[link.b]}" if between else hosts[link.a]
        text = f"{pair}: {_speed(link.latency, link.bandwidth)}"
        if link.bandwidth < SLOW_LINK * middle:
            text += f", where the median is {_speed(link.latency, middle).split(', ')[1]}"
            findings.append(Finding("warning", name, text, "leave the slow node out (--exclude), and tell the site"))
        elif between and (link.bandwidth < BANDWIDTH_WARNING or link.latency > LATENCY_WARNING_SECONDS):
            remedy = "make sure that MPI uses the fast network (ompi_info, UCX, the site's modules)"
            findings.append(Finding("warning", name, text, remedy))
    if findings:
        return findings
    latency = statistics.median(link.latency for link in links)
    slowest = min(link.bandwidth for link in links)
    count = counted(len(links), "pair")
    return [Finding("fine", name, f"{count}, median {_speed(latency, middle)}, slowest {slowest / 1e6:,.0f} MB/s")]


def _speed(latency: float, bandwidth: float) -> str:
    return f"{latency * 1e6:,.0f} us, {bandwidth / 1e6:,.0f} MB/s"


def check_listeners(survey: Survey, need: Need) -> Findings:
    """Where MPI takes connections: ranks of one machine need none from other machines."""
    by_host = {host: sorted({a for facts in ranks for a in facts.listens}) for host, ranks in survey.nodes.items()}
    outside = {host: [a for a in addresses if not ip_address(a).is_loopback] for host, addresses in by_host.items()}
    if len(by_host) == 1 and any(outside.values()):
        text = f"MPI accepts connections at {', '.join(*outside.values())}, though all ranks are on one machine"
        remedy = (
            "`ddrl train` moves its own mpirun to the loopback interface on Linux 5.6 or later; otherwise, shield "
            "the ports"
        )
        return [Finding("warning", "listeners", text, remedy)]
    shown = ", ".join(f"{host} {' '.join(addresses) or 'none'}" for host, addresses in by_host.items())
    return [Finding("fine", "listeners", shown)]


def check_cores(survey: Survey, need: Need) -> Findings:
    """A core for each worker, by the affinity masks: ranks may share one, or be bound to the same."""
    findings = []
    for host, ranks in survey.nodes.items():
        workers = [facts for facts in ranks if need.trains(facts.rank) and facts.seat.cores]
        worst = max(((_crowd(facts, workers), facts) for facts in workers), default=None, key=lambda pair: pair[0])
        if worst is None or worst[0] <= 1:
            continue
        _, facts = worst
        sharing = [worker.rank for worker in workers if set(worker.seat.cores) <= set(facts.seat.cores)]
        text = (
            f"on {host} {len(sharing)} workers (ranks {numbers(sharing)}) share "
            f"{len(facts.seat.cores)} of {counted(facts.node_cores, 'core')}"
        )
        remedy = "use fewer workers, or give each a core: --cpus-per-task (srun), --bind-to none (mpirun)"
        findings.append(Finding("problem" if worst[0] > RANKS_PER_CORE else "warning", "cores", text, remedy))
    findings = findings or [finding for host, ranks in survey.nodes.items() for finding in _idle_cores(host, ranks)]
    each = sorted({len(facts.seat.cores) for facts in survey.ranks})
    most = counted(each[-1], "core")
    shown = f"each rank may use {most if len(each) == 1 else f'{each[0]} to {most}'}"
    return findings or [Finding("fine", "cores", f"one or more for each worker; {shown}")]


def _idle_cores(host: str, ranks: list[RankFacts]) -> Findings:
    """By itself, Open MPI binds each of two ranks to one core, on however large a machine."""
    used = len({core for facts in ranks for core in facts.seat.cores})
    free = max(facts.free_cores for facts in ranks)
    if free - used < len(ranks):
        return []
    text = f"on {host} {counted(len(ranks), 'rank')} may use {used} of {free} cores"
    return [Finding("warning", "cores", text, "unless that is meant, bind no rank: --bind-to none (mpirun)")]


def _crowd(facts: RankFacts, workers: list[RankFacts]) -> float:
    """Workers that have no core outside this rank's mask, for each core of it."""
    return sum(set(worker.seat.cores) <= set(facts.seat.cores) for worker in workers) / len(facts.seat.cores)


def check_memory(survey: Survey, need: Need) -> Findings:
    """Enough free memory on each node for its ranks."""
    problems, spare = [], []
    for host, ranks in survey.nodes.items():
        wanted = sum(_bytes_of(facts.rank, need) for facts in ranks)
        free = min(facts.memory_bytes for facts in ranks)
        spare.append(f"{host} has {_gigabytes(free)} free and needs {_gigabytes(wanted)}")
        if free < wanted:
            whose = "its rank needs" if len(ranks) == 1 else f"its {len(ranks)} ranks need"
            text = f"{host} has {_gigabytes(free)} free, {whose} about {_gigabytes(wanted)}"
            remedy = "use fewer ranks per node or less data in each (see ddrl plan), or ask for more memory (--mem)"
            problems.append(Finding("problem", "memory", text, remedy))
    return problems or [Finding("fine", "memory", ", ".join(spare))]


def _bytes_of(rank: int, need: Need) -> float:
    """Memory that a rank needs: by the settings if they are known, else by its role."""
    if need.rank_bytes:
        return need.rank_bytes[rank]
    return HEAVY_RANK_BYTES if need.heavy(rank) else SERVER_BYTES


def check_gpus(survey: Survey, need: Need) -> Findings:
    """The GPUs that were asked for, visible to nvidia-smi where that is there, and to TensorFlow."""
    findings: Findings = []
    shown = []
    for host, ranks in survey.nodes.items():
        wanted = need.gpus_per_node or gpus_of_node([facts.seat for facts in ranks])
        asked = need.gpus_per_node > 0 or any(facts.gpus_asked for facts in ranks)
        seen = {name for facts in ranks for name in facts.gpus or ()}
        usable = survey.tensorflow_gpus.get(host, 0)
        shown.append(f"{host} {wanted}")
        if len(seen) < wanted and (need.gpus_per_node or any(facts.gpus is not None for facts in ranks)):
            remedy = "check nvidia-smi there, --gres or --gpus-per-node, and CUDA_VISIBLE_DEVICES"
            text = f"nvidia-smi on {host} shows {len(seen)} of {counted(wanted, 'GPU')}"
        elif wanted and usable < 1:
            remedy = 'pip install "tensorflow[and-cuda]"; python -c "import tensorflow" says more'
            answer = "does not answer" if usable < 0 else "can use none"
            text = f"{host} has {counted(wanted, 'GPU')}, and TensorFlow {answer}"
        else:
            continue
        findings.append(Finding("problem" if asked else "warning", "GPUs", text, remedy))
    asked_for = any(not entry.endswith(" 0") for entry in shown)
    return findings or [Finding("fine", "GPUs", "usable: " + ", ".join(shown) if asked_for else "none asked for")]


def check_run_dir(survey: Survey, need: Need) -> Findings:
    """All ranks can write to one and the same run directory."""
    first = survey.ranks[0]
    paths = grouped(survey.ranks, lambda facts: facts.run_dir)
    if len(paths) > 1:
        text = ", ".join(f"{path} on {where(ranks)}" for path, ranks in paths.items())
        return [Finding("problem", "run directory", text, "name it by an absolute path (--run-dir)")]
    errors = grouped(survey.ranks, lambda facts: f"{facts.base.path}: {facts.base.error}" if facts.base.error else "")
    remedy = "choose a --run-dir on a file system that every node can write to"
    problems = [
        Finding("problem", "run directory", f"not writable on {where(ranks)}: {error}", remedy)
        for error, ranks in errors.items()
        if error
    ]
    if problems:
        return problems
    hidden = sorted({*survey.token_unseen, *survey.file_unseen})
    if hidden:
        others = where([facts for facts in survey.ranks if facts.rank in hidden])
        text = f"{first.base.path} on {first.host} and on {others} are not the same: files did not show up within 10 s"
        return [Finding("problem", "run directory", text, remedy)]
    exists = first.base.path == first.run_dir
    if exists and not need.existing and not _free(Path(first.run_dir)):
        text = f"{first.run_dir} exists, and a new run needs one of its own"
        return [Finding("warning", "run directory", text, f"name another --run-dir, or {go_on(first.run_dir)}")]
    text = first.run_dir if exists else f"{first.run_dir}, to be made in {first.base.path}"
    shared = ", writable and shared" if len(survey.ranks) > 1 else ", writable"
    return [Finding("fine", "run directory", text + shared)]


def _free(path: Path) -> bool:
    """Whether a new run can have it: it holds nothing but what a start leaves that trained nothing."""
    try:
        return rundir.untrained(path)
    except OSError:
        return False


def check_space(survey: Survey, need: Need) -> Findings:
    """Free space for checkpoints, for MPI's session files, and for shared memory."""
    findings: Findings = []
    for host, ranks in survey.nodes.items():
        findings += [finding for place in _places(ranks[0]) for finding in _space(host, place)]
    shown = ", ".join(f"{place.path} {_gigabytes(place.free_bytes)}" for place in _places(survey.ranks[0]))
    return findings or [Finding("fine", "free space", f"on {survey.ranks[0].host}: {shown}")]


def _places(facts: RankFacts) -> list[Place]:
    """The directories that a rank needs, each once. (Whether it can write to the run's is another check.)"""
    base = () if facts.base.error else (facts.base,)
    return list({place.path: place for place in (*base, *facts.places)}.values())


def _space(host: str, place: Place) -> Findings:
    shared_memory = place.path == "/dev/shm"
    if place.error:
        text = f"{place.path} on {host} is not writable: {place.error}"
        remedy = "ask the site to make it so" if shared_memory else "set TMPDIR to a directory that is"
        return [Finding("problem", "free space", text, remedy)]
    text = f"{place.path} on {host} has {place.free_bytes / 1e6:,.0f} MB free"
    if 0 <= place.free_bytes < (SHARED_MEMORY_BYTES if shared_memory else SPACE_PROBLEM_BYTES):
        other = "give a container more with --shm-size" if shared_memory else "use another file system"
        return [Finding("problem", "free space", text, f"free space there, or {other}")]
    if 0 <= place.free_bytes < SPACE_WARNING_BYTES and not shared_memory:
        return [Finding("warning", "free space", text, "checkpoints, metrics, and videos may fill it")]
    return []


def check_clocks(survey: Survey, need: Need) -> Findings:
    """Clocks of the nodes agree, or times in logs and of files mislead."""
    findings: Findings = []
    for host, skew in survey.skews.items():
        if abs(skew) > SKEW_WARNING_SECONDS:
            level: Level = "problem" if abs(skew) > SKEW_PROBLEM_SECONDS else "warning"
            text = f"{host} is {abs(skew):,.1f} s {'ahead of' if skew > 0 else 'behind'} {survey.ranks[0].host}"
            findings.append(Finding(level, "clocks", text, "ask the site to fix its time service (chronyc tracking)"))
    if findings or not survey.skews:
        return findings
    return [Finding("fine", "clocks", f"within {max(map(abs, survey.skews.values())) * 1000:.1f} ms of one another")]


def check_limits(survey: Survey, need: Need) -> Findings:
    """Limits of a process that matter to MPI."""
    findings: Findings = []
    wanted = len(survey.ranks) + FILES_SPARE
    few = [facts for facts in survey.ranks if 0 <= facts.files_limit < wanted]
    if few:
        text = f"{few[0].files_limit} open files on {where(few)}, {wanted} may be needed"
        findings.append(Finding("warning", "limits", text, "ulimit -n unlimited, or ask the site"))
    locked = [facts for facts in survey.ranks if facts.rdma and 0 <= facts.locked_bytes < LOCKED_BYTES]
    if locked:
        text = f"{locked[0].locked_bytes:,} bytes of locked memory on {where(locked)}: too few for InfiniBand"
        findings.append(Finding("warning", "limits", text, "ulimit -l unlimited in the job, or ask the site"))
    return findings or [Finding("fine", "limits", "open files and locked memory suffice")]


def check_survival(survey: Survey, need: Need) -> Findings:
    """Whether the death of a worker can be survived, as --on-worker-loss says."""
    if all(facts.ulfm for facts in survey.ranks):
        return [Finding("fine", "worker loss", "MPI reports dead ranks (ULFM): --on-worker-loss survive works")]
    if len(survey.ranks) == 1:
        return [Finding("fine", "worker loss", "one process: its death ends the run")]
    if not need.survive:
        return [Finding("fine", "worker loss", "--on-worker-loss restart: the death of any rank ends the job")]
    remedy = "mpirun --with-ft ulfm (Open MPI 5), or --on-worker-loss restart and requeue; srun has none"
    return [Finding("warning", "worker loss", "MPI without ULFM: the death of any rank ends the job", remedy)]


CHECKS: tuple[Callable[[Survey, Need], Findings], ...] = (
    check_versions, check_run_dir, check_memory, check_cores, check_gpus, check_network,
    check_listeners, check_names, check_clocks, check_space, check_limits, check_survival,
)  # fmt: skip


def numbers(ranks: Iterable[int]) -> str:
    """'0-2, 5' for 0, 1, 2, 5."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def where(ranks: list[RankFacts]) -> str:
    """'n1, n2 (ranks 0-3)'."""
    hosts = ", ".join(dict.fromkeys(facts.host for facts in ranks))
    return f"{hosts} ({plural('rank', len(ranks))} {numbers(facts.rank for facts in ranks)})"


def _gigabytes(count: float) -> str:
    return "any" if count < 0 or count >= 1 << 61 else f"{count / 1e9:.1f} GB"
