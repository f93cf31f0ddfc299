#!/bin/sh
# A Slurm of this one machine, for tests: `slurm.sh start`, then sbatch, srun and scontrol work; `slurm.sh stop`.
# `slurm.sh why` says in a line why it cannot be started here, and nothing where it can.
set -eu

etc=/etc/slurm
state=/var/spool/roundround-slurm
marker=$state/started

why() {
    for program in slurmctld slurmd munged mungekey srun sbatch scontrol; do
        PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || { echo "$program is not installed (Debian: apt-get install slurm-wlm munge)"; return; }
    done
    [ "$(id -u)" = 0 ] || { echo "Slurm's daemons are started by root"; return; }
    if [ ! -f "$marker" ] && [ -f "$etc/slurm.conf" ] && ! grep -q '^ClusterName=roundround$\|^ClusterName=one$' "$etc/slurm.conf"; then
        echo "$etc/slurm.conf is of another cluster"
    fi
}

start() {
    reason=$(why)
    [ -z "$reason" ] || { echo "$reason" >&2; exit 1; }
    node=$(hostname -s)
    mkdir -p "$etc" "$state/control" "$state/node" /run/munge
    [ -f /etc/munge/munge.key ] || mungekey --create
    chown munge: /etc/munge/munge.key /run/munge
    cat >"$etc/slurm.conf" <<CONF
ClusterName=roundround
SlurmctldHost=$node
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
StateSaveLocation=$state/control
SlurmdSpoolDir=$state/node
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
JobRequeue=1
KillWait=20
MinJobAge=600
SchedulerParameters=batch_sched_delay=0,sched_interval=2
NodeName=$node CPUs=$(getconf _NPROCESSORS_ONLN) State=UNKNOWN
PartitionName=tests Nodes=ALL Default=YES MaxTime=60 OverSubscribe=NO
CONF
    touch "$marker"
    if ! pgrep -x munged >/dev/null; then
        runuser -u munge -- munged --force
        touch "$state/munged"
    fi
    PATH=$PATH:/usr/sbin
    slurmctld -c
    slurmd -c
    for _ in $(seq 60); do
        if timeout 5 srun --immediate=2 true 2>/dev/null; then return; fi
        scontrol update NodeName="$node" State=RESUME 2>/dev/null || true
        sleep 0.5
    done
    echo "Slurm was started and runs no job; see $state/slurmctld.log" >&2
    stop
    exit 1
}

stop() {
    if timeout 10 scancel --user=root 2>/dev/null; then sleep 1; fi
    for daemon in slurmd slurmctld; do
        [ -f "$state/$daemon.pid" ] || continue
        pid=$(cat "$state/$daemon.pid")
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 100); do
            if kill -0 "$pid" 2>/dev/null; then sleep 0.1; fi
        done
    done
    if [ -f "$state/munged" ] && [ -f /run/munge/munged.pid ]; then kill "$(cat /run/munge/munged.pid)" || true; fi
    rm -rf "$state"
}

case "${1:-}" in
start | stop | why) "$1" ;;
*) echo "usage: slurm.sh start|stop|why" >&2; exit 2 ;;
esac
