#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `srun sluice train` under the real Slurm, with its daemons on this machine:
# same state as one process, and a preempted job that goes on. Exit status 77:
# skipped, with the reason.
#   tests/slurm/run.sh build/sluice
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/bed.sh"
logs='*.log'
show() { squeue; }
[ "$(id -u)" -eq 0 ] || skip 'not root'
for tool in munged slurmctld slurmd srun sbatch; do
    command -v $tool >/dev/null || skip "no $tool"
done
srun --mpi=list 2>&1 | grep -q pmix ||
    ls /usr/lib/*/slurm*/mpi_pmix.so >/dev/null 2>&1 ||
    skip 'this Slurm has no pmix'

. "$here/cluster.sh"
on_end() { cluster_end; }
if ! cluster_begin; then
    for log in slurm/*.log slurm/*.out; do
        echo "== $log"
        tail -n 5 "$log"
    done
    skip 'the daemons of Slurm do not start here'
fi

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 32, classes: 64, n_samples: 64}
model: {type: gpt, layers: 2, width: 64, heads: 2, vocab: 64}
train: {batch: 8, micro_batches: 4, steps: 300}
optimizer: {type: adamw, lr: 0.01}
devices: {threads: 1}
YAML
"$sluice" train gpt.yaml --quiet --stages 2 >alone.log 2>&1
alone=$(hash_in alone.log)
[ -n "$alone" ] || fail 'one process has no hash'

# two tasks, one stage each
srun -n 2 "$sluice" train gpt.yaml >srun.log 2>&1 ||
    fail "srun: exit status $?"
[ "$(hash_in srun.log)" = "$alone" ] || fail 'srun: another state'
grep -q '  0      1  .*   1  .* / cpu:0' srun.log ||
    fail 'srun: the mapping is not of two tasks'
echo 'srun: ok'

# Preempted by a job of a higher partition that needs all CPUs, Slurm warns with
# the signal that the job has asked for: a checkpoint, then back in the queue,
# then on from there when the other one has ended.
cat >job.sh <<SH
#!/bin/sh
#SBATCH --ntasks=2 --requeue --open-mode=append --output=job.log
#SBATCH --signal=USR1@60
srun "$sluice" train gpt.yaml --quiet --steps 2000 --checkpoint checkpoints --resume auto \\
    --metrics metrics.jsonl
status=\$?
echo "exit status \$status"
[ \$status -ne 130 ] || scontrol requeue \$SLURM_JOB_ID
exit \$status
SH
id=$(sbatch --parsable job.sh) || fail 'sbatch'
until_true grep -q '"step": *20,' metrics.jsonl
cat >urgent.sh <<SH
#!/bin/sh
echo begun >>urgent.out
until [ -e urgent.end ]; do sleep 0.1; done
SH
urgent=$(sbatch --parsable --partition=high --exclusive --output=urgent.log \
    urgent.sh) || fail 'sbatch --partition=high'
until_true grep -q 'exit status 130' job.log
[ -s checkpoints/latest ] || fail 'no checkpoint when preempted'
until_true test -s urgent.out
squeue -h -j "$id" -o %T >state.log
grep -q PENDING state.log || fail 'the preempted job is not back in the queue'
: >urgent.end
is_done() { [ -z "$(squeue -h -j "$urgent" 2>/dev/null)" ]; }
until_true is_done
# a requeued job would not begin for some minutes, unless it is told to
is_through() {
    scontrol update "JobId=$id" StartTime=now
    sleep 1
    grep -q 'exit status 0' job.log
}
until_true is_through
"$sluice" train gpt.yaml --quiet --stages 2 --steps 2000 >long.log 2>&1
[ "$(hash_in job.log | tail -n 1)" = "$(hash_in long.log)" ] ||
    fail 'a preempted job: another state'
echo 'preempted and requeued: ok'
