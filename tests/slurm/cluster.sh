# SPDX-License-Identifier: Apache-2.0
# A Slurm cluster of this one machine, in $folder, for `. cluster.sh`:
# cluster_begin, cluster_end. Its daemons are children of the shell.
# shellcheck shell=sh

munged= slurmctld= slurmd=

cluster_begin() {
    slurm_name=$(hostname -s)
    slurm_port=$((20000 + $$ % 20000))
    mkdir -p "$folder/slurm/state" "$folder/slurm/spool" || return 1
    chmod 755 "$folder" "$folder/slurm"
    (umask 077 && head -c 128 /dev/urandom >"$folder/slurm/munge.key")
    munged --foreground --force --num-threads=1 \
        --key-file="$folder/slurm/munge.key" \
        --socket="$folder/slurm/munge.socket" \
        --pid-file="$folder/slurm/munged.pid" \
        --seed-file="$folder/slurm/munged.seed" \
        --log-file="$folder/slurm/munged.log" >"$folder/slurm/munge.out" 2>&1 &
    munged=$!
    cat >"$folder/slurm/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$slurm_name
SlurmctldPort=$slurm_port
SlurmdPort=$((slurm_port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/slurm/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/slurm/state
SlurmdSpoolDir=$folder/slurm/spool
SlurmctldPidFile=$folder/slurm/slurmctld.pid
SlurmdPidFile=$folder/slurm/slurmd.pid
SlurmctldLogFile=$folder/slurm/slurmctld.log
SlurmdLogFile=$folder/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=pmix
ReturnToService=2
KillWait=30
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
NodeName=$slurm_name CPUs=$(nproc) RealMemory=1000
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=off
CONF
    echo 'CgroupPlugin=autodetect' >"$folder/slurm/cgroup.conf"
    # not in the system's, where a killed run would leave its files
    echo "PMIxCliTmpDirBase=$folder/slurm/spool" >"$folder/slurm/mpi.conf"
    SLURM_CONF=$folder/slurm/slurm.conf
    export SLURM_CONF
    sleep 1
    slurmctld -D -c >"$folder/slurm/slurmctld.out" 2>&1 &
    slurmctld=$!
    slurmd -D -N "$slurm_name" >"$folder/slurm/slurmd.out" 2>&1 &
    slurmd=$!
    n=0
    until sinfo -h -o %T 2>/dev/null | grep -q idle; do
        n=$((n + 1))
        [ $n -lt 150 ] || return 1
        sleep 0.2
    done
}

cluster_end() {
    if [ -n "$slurmctld" ]; then
        scancel --signal=KILL --user=root --full 2>/dev/null
        scancel --user=root 2>/dev/null
        n=0
        while [ -n "$(squeue -h 2>/dev/null)" ] && [ $n -lt 50 ]; do
            n=$((n + 1))
            sleep 0.1
        done
    fi
    for pid in $slurmd $slurmctld $munged; do
        kill "$pid" 2>/dev/null
    done
    wait $slurmd $slurmctld $munged 2>/dev/null
}
