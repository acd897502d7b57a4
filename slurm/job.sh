# What the scripts of this directory share. They source it; the functions below are for them.

set -euo pipefail
umask 022

fail() { echo "ddrl: $*" >&2; exit 2; }

[[ -n ${SLURM_JOB_ID:-} ]] || fail "not inside a Slurm job: submit the script with sbatch"
SLURM_NTASKS=${SLURM_NTASKS:-${SLURM_NTASKS_HET_GROUP_0:-}}
[[ $SLURM_NTASKS =~ ^[1-9][0-9]*$ ]] || fail "SLURM_NTASKS='$SLURM_NTASKS': give sbatch --ntasks or --ntasks-per-node"
SITE=${SITE:-slurm/site.conf}
[[ -r $SITE ]] || fail "no $SITE in $PWD: copy slurm/site.conf.example, and submit from the directory that holds slurm/"
# shellcheck source=/dev/null
source "$SITE"
case $LAUNCHER in srun | mpirun) ;; *) fail "LAUNCHER=$LAUNCHER in $SITE: use srun or mpirun" ;; esac
set +u
load_modules
set -u
[[ -z ${VENV:-} ]] || export PATH=$VENV/bin:$PATH
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 # a rank computes with the cores that ddrl gives it
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}               # srun does not take it from sbatch
export PYTHONUNBUFFERED=1
[[ -z ${INTERFACE:-} ]] || export OMPI_MCA_btl_tcp_if_include=$INTERFACE PRTE_MCA_prte_if_include=$INTERFACE
if [[ -z ${SLURM_JOB_END_TIME:-} ]]; then                         # Slurm before 23.02 does not set it
  end=$(squeue -h -j "$SLURM_JOB_ID" -o %e) && end=$(date -d "$end" +%s 2>/dev/null) && export SLURM_JOB_END_TIME=$end
fi

# check_nodes: every node has the same ddrl.
check_nodes() {
  local found
  # shellcheck disable=SC2016 # expanded on the nodes
  found=$(srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    bash -c 'echo "$SLURMD_NODENAME: $(ddrl --version 2>/dev/null || echo no ddrl)"' | sort)
  if [[ $(cut -d: -f2 <<<"$found" | sort -u) != " ddrl "* || $(cut -d: -f2 <<<"$found" | sort -u | wc -l) != 1 ]]; then
    fail "the nodes differ (${found//$'\n'/, }): install one version where all see it, and name it as VENV in $SITE"
  fi
}

# train RUN RANKS OPTION...: trains in the run directory RUN, or goes on there, with so many ranks; returns when that
# has ended, after at most RESTARTS new starts when a rank died. USR1 (Slurm's warning, see --signal) and TERM lead to
# a checkpoint and an end; after USR1, with REQUEUE=yes, the job then goes back into the queue.
train() {
  local run=$1 ranks=$2 restarts=${RESTARTS:-0} status
  shift 2
  local command=(ddrl train "${ALGORITHM:-ba3c}" --resume-or-start --run-dir "$run" "$@") tasks=(--ntasks="$ranks")
  [[ -z ${HET_GROUPS:-} ]] || tasks=(--het-group="$HET_GROUPS")
  if [[ $LAUNCHER == srun ]]; then
    command=(srun --mpi="${SRUN_MPI:-pmix}" --kill-on-bad-exit=1 "${tasks[@]}" "${command[@]}")
  else
    command=(mpirun --with-ft ulfm --bind-to none -n "$ranks" "${command[@]}")
  fi
  while true; do
    status=0
    supervise "$run" "${command[@]}" || status=$?
    # with ULFM, mpirun takes the loss of any rank for survived
    [[ $status != 0 ]] || well "$run" || status=1
    if [[ $ASKED || $status == [02] || $restarts == 0 ]] || ended "$run"; then break; fi
    nodes_answer || await_requeue
    restarts=$((restarts - 1))
    echo "ddrl ended with status $status: it starts again, from the last checkpoint if there is one"
  done
  if [[ $ASKED == USR1 && ${REQUEUE:-no} == yes ]] && ! ended "$run"; then
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60 # Slurm ends it
  fi
  return "$status"
}

# nodes_answer: a step on every node of the job begins.
nodes_answer() {
  timeout 60 srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 true 2>&1 \
    | sed 's/^/check of the nodes: /'
}

# await_requeue: a node is gone. Slurm puts the job back into the queue once it has seen that (SlurmdTimeout).
await_requeue() {
  [[ ${REQUEUE:-no} == yes ]] || fail "a node does not answer: submit the job again (REQUEUE=no)"
  echo "a node does not answer: waiting until Slurm puts the job back into the queue, ${NODE_SECONDS:-600} s at most"
  sleep "${NODE_SECONDS:-600}" &
  wait $! || true
  fail "Slurm did not put the job back into the queue: submit it again"
}

# ended RUN: the run came to an end that a new start would not change. Without its last checkpoint it did not.
ended() {
  grep -Eqs '"status": "(finished|target|failed)"' "$1/result.json" && ! grep -Eqs '"(lost|unsaved)":' "$1/result.json"
}

# supervise RUN COMMAND...: the command's status; once asked to end, passes that on until the command has ended.
supervise() {
  local run=$1 status=0 launcher guard before
  shift
  ASKED=
  before=$(result_of "$run")
  trap 'ASKED=USR1' USR1
  trap 'ASKED=${ASKED:-TERM}' TERM
  "$@" &
  launcher=$!
  release "$run" "$before" "$launcher" &
  guard=$!
  wait "$launcher" || status=$?
  while [[ $ASKED ]] && kill -0 "$launcher" 2>/dev/null; do
    [[ ! -d $run ]] || touch "$run/stop" # again and again, as ranks that begin remove an old one
    sleep 1
  done
  if [[ $ASKED ]]; then
    status=0
    wait "$launcher" || status=$?
  fi
  kill "$guard" 2>/dev/null || true
  [[ $status != 137 ]] || ! ended_well "$run" "$before" || status=0
  return "$status"
}

# result_of RUN: what tells its results apart.
result_of() { stat -c '%i %Y' "$1/result.json" 2>/dev/null || true; }

# ended_well RUN BEFORE: the run has ended by itself or as asked since its result was BEFORE.
ended_well() {
  [[ $(result_of "$1") != "$2" ]] && well "$1"
}

# well RUN: its result is one of a run that did not fail.
well() { grep -Eqs '"status": "(finished|target|stopped)"' "$1/result.json"; }

# release RUN BEFORE LAUNCHER: kills a launcher that stays for LAUNCHER_SECONDS after the run has ended well.
release() {
  until ended_well "$1" "$2"; do sleep 5; done
  sleep "${LAUNCHER_SECONDS:-600}"
  echo "the run has ended, and $LAUNCHER has not in ${LAUNCHER_SECONDS:-600} s: it is killed"
  kill -KILL "$3"
}
