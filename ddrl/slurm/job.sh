# What jobs of ddrl share: the scripts of slurm/ and those that `ddrl submit` writes source it. The functions below are
# for them.

set -euo pipefail
umask o-w # nothing that everybody may write

# What has asked the job to end: USR1 (Slurm's warning, see --signal) or TERM. The warning may come at any time, and
# without a trap it would kill this script.
ASKED=
warned() { ASKED=USR1 WARNED_AFTER=${WARNED_AFTER:-$SECONDS}; }
trap warned USR1

fail() { echo "ddrl: $*" >&2; exit 2; }

[[ -n ${SLURM_JOB_ID:-} ]] || fail "not inside a Slurm job: submit the script with sbatch"
THIS_JOB=$SLURM_JOB_ID # one task of an array has the number of the whole array, which Slurm would take for all its tasks
[[ -z ${SLURM_ARRAY_JOB_ID:-} ]] || THIS_JOB=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
SLURM_NTASKS=${SLURM_NTASKS:-${SLURM_NTASKS_HET_GROUP_0:-}}
[[ $SLURM_NTASKS =~ ^[1-9][0-9]*$ ]] || fail "SLURM_NTASKS='$SLURM_NTASKS': give sbatch --ntasks or --ntasks-per-node"
if [[ ${1:-} && $1 != -* ]]; then # the first word after the name of the script
  ALGORITHM=$1
  shift
fi
load_modules() { :; }
# the same order as in site.py; set and empty: none is wanted
if [[ -z ${DDRL_SITE+set} ]]; then
  home=${XDG_CONFIG_HOME:-$HOME/.config}/ddrl
  for DDRL_SITE in "${BASH_SOURCE[0]%/*}/../../slurm/site.conf" "$home/site.conf" ''; do
    [[ ! -r $DDRL_SITE ]] || break
  done
fi
if [[ $DDRL_SITE ]]; then
  [[ -r $DDRL_SITE ]] || fail "DDRL_SITE=$DDRL_SITE cannot be read on $(uname -n): keep it where all nodes see it"
  set +u
  # shellcheck source=/dev/null
  source "$DDRL_SITE" || true # its last command may be a condition
  load_modules
  set -u
fi
[[ -z ${VENV:-} ]] || export PATH=$VENV/bin:$PATH
RUNS=${RUNS:-$PWD/runs}
[[ ${LAUNCHER:-} ]] || { LAUNCHER=srun; ! command -v mpirun >/dev/null || LAUNCHER=mpirun; }
case $LAUNCHER in srun | mpirun) ;; *) fail "LAUNCHER=$LAUNCHER in $DDRL_SITE: use srun or mpirun" ;; esac
export PYTHONUNBUFFERED=1
export SLURM_EXPORT_ENV=ALL # srun hands this environment on, also where sbatch was told to hand on none
# SLURM_TRES_PER_TASK keeps the number that sbatch was asked for where a site's limit of memory per processor raises
# SLURM_CPUS_PER_TASK, and srun refuses two numbers
for variable in "${!SLURM_TRES_PER_TASK@}"; do
  printf -v "$variable" %s "$(sed -E 's/(^|,)cpu[=:][0-9]+//; s/^,//' <<<"${!variable}")"
  [[ ${!variable} ]] || unset "$variable"
done
if [[ -z ${SLURM_JOB_END_TIME:-} ]]; then # Slurm before 23.02 does not set it
  # a line for each component; without a text, date would give the last midnight
  end=$(squeue -h -j "$THIS_JOB" -o %e) && [[ $end ]] && end=$(date -d "${end%%$'\n'*}" +%s 2>/dev/null) \
    && export SLURM_JOB_END_TIME=$end
fi

# on_nodes LIMIT PROGRAM...: runs a program once on every node of the job, one component after the other; fails if that
# takes longer than LIMIT seconds.
on_nodes() {
  local limit=$1 groups=("") group nodes
  shift
  [[ -z ${HET_GROUPS:-} ]] || IFS=, read -ra groups <<<"$HET_GROUPS"
  for group in "${groups[@]}"; do # srun alone asks the first component only
    nodes=SLURM_JOB_NUM_NODES${group:+_HET_GROUP_$group}
    timeout -k 10 "$((limit / ${#groups[@]}))" srun --mpi=none ${group:+"--het-group=$group"} --cpus-per-task=1 \
      --nodes="${!nodes}" --ntasks="${!nodes}" --ntasks-per-node=1 "$@" || return 1
  done
}

# check_nodes: every node has the same ddrl, by its version and the mark of its source.
check_nodes() {
  local found limit=${NODE_SECONDS:-600}
  # shellcheck disable=SC2016 # expanded on the nodes
  found=$(on_nodes "$limit" bash -c 'echo "$SLURMD_NODENAME: $(ddrl --version 2>/dev/null || echo no ddrl)"' | sort) \
    || heed_preemption || fail "not all nodes said within $limit s which ddrl they have; srun may have said why"
  [[ ! $ASKED ]] || return 0 # no run begins
  if [[ $(cut -d: -f2 <<<"$found" | sort -u) != " ddrl "* || $(cut -d: -f2 <<<"$found" | sort -u | wc -l) != 1 ]]; then
    fail "the nodes differ (${found//$'\n'/; }): install ddrl once, where all see it, and name it as VENV in" \
      "${DDRL_SITE:-a site file}"
  fi
}

# option NAME DEFAULT WORD...: the last value that the words give to --NAME, or the default.
option() {
  local name=--$1 value=$2
  shift 2
  while (($#)); do
    case ${1//_/-} in
      "$name") value=${2:-} ;;
      "$name"=*) value=${1#*=} ;;
    esac
    shift
  done
  printf '%s\n' "$value" # which may be -n
}

# rest ROLE RANKS [NUMBER WHAT]...: the ranks of RANKS that others leave, such as: rest workers 8 2 "parameter servers"
rest() {
  local role=$1 ranks=$2 left=$2 taken=
  shift 2
  while (($#)); do
    [[ $1 =~ ^[0-9]{1,9}$ ]] || fail "$1 $2: give a whole number"
    left=$((left - 10#$1)) taken+="${taken:+ and }$1 $2"
    shift 2
  done
  ((left > 0)) || fail "$ranks ranks leave none for $role beside $taken: ask sbatch for more (--nodes," \
    "--ntasks-per-node), or take fewer of the others"
  echo "$left"
}

# evaluators WORD...: 0 where the words say --no-evaluator, else 1.
evaluators() {
  local number=1 word
  for word in "$@"; do
    case ${word//_/-} in --no-evaluator) number=0 ;; --evaluator) number=1 ;; esac
  done
  echo "$number"
}

# share_ranks OPTION...: sets WORKERS and SERVERS by these options; workers that they do not name are the ranks that are
# left.
share_ranks() {
  SERVERS=$(option parameter-servers "$SERVERS" "$@")
  WORKERS=$(option workers "" "$@")
  [[ $WORKERS ]] \
    || WORKERS=$(rest workers "$SLURM_NTASKS" "$SERVERS" "parameter servers" "$(evaluators "$@")" evaluator)
}

# train RUN RANKS OPTION...: trains in the run directory RUN (or --run-dir), or goes on there, with so many
# ranks; returns when that has ended, after at most RESTARTS new starts when a rank died. USR1 and TERM lead to a
# checkpoint and an end, or to no start; after USR1, with REQUEUE=yes, the job then goes back into the queue.
train() {
  local run=$1 ranks=$2 restarts=${RESTARTS:-0} status=1 LAUNCH before
  shift 2
  [[ $restarts =~ ^[0-9]{1,9}$ ]] || fail "RESTARTS=$restarts: give a whole number"
  restarts=$((10#$restarts))
  run=$(option run-dir "$run" "$@")
  [[ $run != -* ]] || run=./$run # touch, mkdir, stat and grep would take it for options
  export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 # a rank computes with the cores that ddrl gives it
  [[ -z ${INTERFACE:-} ]] || export OMPI_MCA_btl_tcp_if_include=$INTERFACE PRTE_MCA_prte_if_include=$INTERFACE
  note_job "$run"
  local command=(ddrl train)
  [[ -z ${ALGORITHM-ba3c} ]] || command+=("${ALGORITHM-ba3c}") # set and empty: the options say it
  command+=(--resume-or-start --run-dir "$run" "$@")
  launch "$ranks"
  # on several nodes the daemons of mpirun are steps, which SIGTERM ends with the ranks
  [[ $LAUNCHER == srun || ${SLURM_JOB_NUM_NODES:-} != 1 ]] || listen
  put_result_back "$run"
  before=$(result_of "$run")
  [[ ! $ASKED ]] || echo "ddrl: the job was warned of its end before the run began"
  while [[ ! $ASKED ]]; do
    status=0
    supervise "$run" "$before" "${LAUNCH[@]}" "${command[@]}" || status=$?
    heed_preemption || true
    # with ULFM, mpirun takes the loss of any rank for survived
    [[ $status != 0 ]] || { ended_well "$run" "$before" && ! cut_off "$run"; } || status=1
    if [[ $ASKED || $status == [02] ]] || ended "$run" "$before"; then break; fi
    [[ $restarts != 0 || ${REQUEUE:-no} == yes ]] || break # a requeue by Slurm needs no new start
    nodes_answer || heed_preemption || await_requeue "$run"
    [[ ! $ASKED && $restarts != 0 ]] || break
    put_result_back "$run"
    restarts=$((restarts - 1)) before=$(result_of "$run")
    # ddrl refuses a job that ends before its first checkpoint; a new start trains on until the warning, and saves then
    command=(env -u SLURM_JOB_END_TIME "${command[@]}")
    echo "ddrl ended with status $status: it starts again, from the last checkpoint if there is one"
  done
  if [[ $ASKED == USR1 && ${REQUEUE:-no} == yes ]] && ! ended "$run" "$before"; then
    go_back
    sleep 60 # Slurm ends it
  fi
  put_result_back "$run"
  return "$status"
}

# heed_preemption: whether the job is to end, because it was asked to, or because Slurm preempts it, which counts as its
# warning. As GraceTime begins, Slurm sends SIGTERM to the ranks and other steps, and nothing to this script: it asks
# when they have ended.
heed_preemption() {
  [[ ! $ASKED ]] || return 0
  preempted || return 1
  echo "ddrl: Slurm preempts the job, whose nodes another one needs"
  warned
}

# listen: warns this script as Slurm begins to preempt the job, for what is no step and hears nothing then. SIGTERM ends
# a step that sleeps, and that takes no cores and no memory from others.
listen() {
  {
    srun --mpi=none --overlap --mem=0 --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=1 sleep infinity \
      &>/dev/null || true # Slurm before 20.11 has no --overlap
    ! heed_preemption || kill -USR1 $$
  } &
}

# preempted: Slurm has begun to preempt the job.
preempted() { [[ $(scontrol show job "$THIS_JOB" 2>/dev/null) == *" PreemptTime="[0-9]* ]]; }

# go_back: puts the job, which was warned, back into the queue, unless it has so little time that it would be warned as
# soon as it begins, again and again.
go_back() {
  local time=$((${SLURM_JOB_END_TIME:-0} - $(date +%s) + SECONDS))
  if ((WARNED_AFTER < 60 && time > 0 && time < 540)) && ! preempted; then
    fail "Slurm warned the job of its end in its first minute, so it does not go back into the queue: give sbatch a" \
      "--time that is longer than the warning before the end (--signal) and the start"
  fi
  scontrol requeue "$THIS_JOB" || fail "Slurm does not put the job back into the queue: submit it again"
}

# launch RANKS: sets LAUNCH to the command that starts so many ranks, and what srun takes from its environment.
launch() {
  local group cpus
  # mpirun's own srun starts a daemon on each node; with this, a daemon would have the cores and memory of one rank
  unset SRUN_CPUS_PER_TASK
  if [[ $LAUNCHER == mpirun ]]; then
    case $(command mpirun --version 2>&1) in # as mpirun_command of cluster/launch.py
      *"(Open MPI) "[1-4].*) LAUNCH=(mpirun --bind-to none -n "$1") ;;
      *"(Open MPI) "*) LAUNCH=(mpirun --with-ft ulfm --bind-to none -n "$1") ;;
      *) LAUNCH=(mpirun -n "$1") ;;
    esac
    return
  fi
  LAUNCH=(srun --mpi="${SRUN_MPI:-pmix}" --kill-on-bad-exit=1)
  if [[ ! ${HET_GROUPS:-} ]]; then
    export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not take it from sbatch
    LAUNCH+=(--ntasks="$1")
    return
  fi
  for group in ${HET_GROUPS//,/ }; do
    cpus=SLURM_CPUS_PER_TASK_HET_GROUP_$group
    export "SRUN_CPUS_PER_TASK_HET_GROUP_$group=${!cpus:-1}"
  done
  LAUNCH+=(--het-group="$HET_GROUPS")
}

# note_job RUN: writes into RUN which job this is and where its output goes, for `ddrl status` and `ddrl logs`. A
# directory that cannot be made is ddrl's to refuse. A link or pipe of somebody else is left alone: the link may lead to
# any file of this user.
note_job() {
  local jobs=$1/slurm-jobs.tsv output
  [[ ! -L $jobs && (-f $jobs || ! -e $jobs) ]] || return 0
  ! grep -qs "^$THIS_JOB"$'\t' "$jobs" || return 0
  output=$(scontrol show job "$THIS_JOB" | sed -n 's/^ *StdOut=//p' | head -n 1) || true
  mkdir -p "$1" 2>/dev/null && printf '%s\t%s\n' "$THIS_JOB" "$output" 2>/dev/null >>"$jobs" || true
}

# task COMMAND...: runs a command of one process, and returns its status. USR1 and TERM reach it as TERM; after USR1
# the job goes back into the queue.
task() {
  local run status=0
  [[ $ASKED ]] || listen
  "$@" &
  run=$!
  trap 'warned; kill -TERM "$run" 2>/dev/null || true' USR1
  trap 'kill -TERM "$run" 2>/dev/null || true' TERM
  [[ ! $ASKED ]] || kill -TERM "$run" 2>/dev/null || true # warned before there was a command
  until_ended "$run" true || status=$?
  trap '' USR1 # it comes too late, or again
  trap - TERM
  [[ ! $ASKED ]] || go_back
  return "$status"
}

# until_ended PROCESS COMMAND...: runs the command every second until the process, a child, has ended, whose status it
# returns. A `wait` before that would be ended by a signal, with another status, and not by one that comes just before.
until_ended() {
  local process=$1
  shift
  while kill -0 "$process" 2>/dev/null; do
    "$@"
    sleep 1 || true # TERM ends the sleep, too
  done
  wait "$process"
}

# nodes_answer: a step on every node of the job begins.
nodes_answer() { on_nodes 60 true 2>&1 | sed 's/^/check of the nodes: /'; }

# cut_off RUN: the run has stopped, nobody asked this job for it, and a node is gone. mpirun then ends the ranks that are
# left as whoever asks them to stop.
cut_off() { [[ ! $ASKED ]] && result_has "$1" '"status": "stopped"' && ! nodes_answer; }

# silent_nodes RUN: the nodes of this job that do not answer Slurm, such as "n3 with worker 1 (rank 2)", by the notes
# that ranks have left in RUN/ranks. Nothing before Slurm has noticed, which asks its nodes only now and then.
silent_nodes() {
  local variable nodes= notes node ranks
  for variable in "${!SLURM_JOB_NODELIST@}"; do nodes+=${nodes:+,}${!variable}; done # one for each component of a job
  [[ $nodes ]] || return 0
  nodes=$(timeout -k 5 10 sinfo -ah -N -n "$nodes" -o '%N %t' 2>/dev/null | sed -n 's/ .*\*$//p' | sort -u) || return 0
  [[ $nodes ]] || return 0
  # notes from before this job are of other nodes; the clock of the file server may differ from ours
  notes=$(timeout -k 5 10 find "$1/ranks" -type f -newermt "$((SECONDS + 60)) seconds ago" \
    -exec grep -hs '"name": "[^"]' {} + 2>/dev/null) || true
  while read -r node; do
    ranks=$(grep "\"host\": \"${node}[\".]" <<<"$notes" | sed 's/.*"name": "\(.*\)".*/\1/; s/ on [^ ]*)$/)/' \
      | sort -V) || true
    ranks=${ranks//$'\n'/, }
    echo "$node${ranks:+ with $ranks}"
  done <<<"$nodes" | paste -sd';' | sed 's/;/; /g'
}

# await_requeue RUN: a node is gone. Slurm puts the job back into the queue once it has seen that (SlurmdTimeout).
# Returns if the job is asked to end before, or if all nodes answer after all: Slurm itself was slow.
await_requeue() {
  local end=$((SECONDS + ${NODE_SECONDS:-600})) again=$((SECONDS + ${NODE_SECONDS:-600} / 10)) silent now
  silent=$(silent_nodes "$1") || true
  [[ ${REQUEUE:-no} == yes ]] || ! nodes_answer || return 0
  [[ ${REQUEUE:-no} == yes ]] || fail "a node does not answer${silent:+, $silent}: submit the job again (REQUEUE=no)"
  echo "a node does not answer${silent:+, $silent}: waiting until Slurm puts the job back into the queue," \
    "${NODE_SECONDS:-600} s at most"
  until [[ $ASKED ]] || ((SECONDS >= end)); do
    sleep 1 || true # TERM ends the sleep, too
    if ((SECONDS % 5 == 0)); then
      now=$(silent_nodes "$1") || true
      [[ ! $now || $now == "$silent" ]] || { silent=$now; echo "Slurm has no answer from $silent"; }
    fi
    if ((SECONDS >= again)) && [[ ! $ASKED ]]; then
      ! nodes_answer || { echo "all nodes answer again"; return 0; }
      again=$((SECONDS + ${NODE_SECONDS:-600} / 10))
    fi
  done
  [[ $ASKED ]] || fail "Slurm did not put the job back into the queue: submit it again"
}

# ended RUN BEFORE: since its result was BEFORE, the run came to an end that a new start would not change. Without its
# last checkpoint it did not, nor where it was asked to end in its final evaluation, which a new start makes alone. A
# failure in a job that is preempted may be of a program of an environment, which had SIGTERM, too.
ended() {
  [[ $(result_of "$1") != "$2" ]] && result_has "$1" '"status": "(finished|target|failed)"' \
    && ! result_has "$1" '"(lost|unsaved|unevaluated)":' && { well "$1" || ! preempted; }
}

# supervise RUN BEFORE COMMAND...: the command's status; once asked to end, passes that on until the command has ended.
# The result of the run was BEFORE.
supervise() {
  local run=$1 before=$2 status=0 launcher guard
  shift 2
  trap 'ASKED=${ASKED:-TERM}' TERM
  "$@" &
  launcher=$!
  release "$run" "$before" "$launcher" &
  guard=$!
  until_ended "$launcher" heed_ask "$run" || status=$?
  kill "$guard" 2>/dev/null || true
  [[ $status != 137 ]] || ! ended_well "$run" "$before" || status=0
  return "$status"
}

# heed_ask RUN: asks the run to stop once the job is asked to end; again and again, as ranks that begin remove an old
# stop.
heed_ask() { [[ ! $ASKED || ! -d $1 ]] || ask_to_stop "$1"; }

# ask_to_stop RUN: makes RUN/stop, unless it is there. A link of somebody else, which may lead to where this user wants
# no file, is replaced (-C follows none).
ask_to_stop() { [[ -e $1/stop ]] || { rm -f "$1/stop" && (set -C && : >"$1/stop"); } 2>/dev/null || true; }

# result_of RUN: what tells its results apart.
result_of() { stat -c '%i %Y' "$1/result.json" 2>/dev/null || true; }

# put_result_back RUN: the result of a run that had finished comes back, if the ranks did not begin to go on with it, and
# no other process is about to. If MPI ended the ranks, rank 0 could not do that.
put_result_back() {
  [[ -f $1/result-before.json && -f $1/lock ]] || return 0
  flock -n "$1/lock" mv -f "$1/result-before.json" "$1/result.json" 2>/dev/null || true
}

# has_new_result RUN BEFORE: it has a result, which is not BEFORE.
has_new_result() { [[ -e $1/result.json && $(result_of "$1") != "$2" ]]; }

# result_has RUN PATTERN: its result has the pattern. A pipe of somebody else, for which grep would wait, is no result.
result_has() { [[ -f $1/result.json ]] && grep -Eqs "$2" "$1/result.json"; }

# ended_well RUN BEFORE: the run has ended by itself or as asked since its result was BEFORE.
ended_well() {
  has_new_result "$1" "$2" && well "$1"
}

# well RUN: its result is one of a run that did not fail.
well() { result_has "$1" '"status": "(finished|target|stopped)"'; }

# release RUN BEFORE LAUNCHER: kills a launcher that stays for LAUNCHER_SECONDS after the run has ended, well or not. An
# earlier result may be there for a moment, before the ranks begin.
release() {
  until has_new_result "$1" "$2" && sleep "${LAUNCHER_SECONDS:-600}" && has_new_result "$1" "$2"; do sleep 5; done
  echo "the run has ended, and $LAUNCHER has not in ${LAUNCHER_SECONDS:-600} s: it is killed"
  if ! well "$1"; then # its ranks, too, which srun kills only if it can: a new start needs their processors
    kill -TERM "$3"
    sleep 10
  fi
  kill -KILL "$3"
}
