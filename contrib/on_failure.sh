#!/bin/sh
# on_failure.sh - an example of what a site may do with a node that has failed a job. Copy it to a
# place that only root can write, and name it in plugstack.conf:
#
#     optional gtrain.so on_failure=/etc/slurm/gtrain_on_failure
#
# It is run once for each node a run has lost, on the host that srun runs on, as the job's user, with
# the node's name, the time (seconds since 1970) and the reason as its arguments and GTRAIN_RUN_DIR
# and SLURM_JOB_ID in its environment. It has 30 seconds; the first line it prints goes to the run's
# coordinator.log. A user can call it with any words: what it may do beyond the user's own rights (by
# sudo, or a service of the site's) is the site's to decide, and arguments are not to be trusted.
set -u
node=${1:?usage: on_failure.sh NODE TIME REASON}
reason=${3:?}

case $node in
*[!A-Za-z0-9._-]*)
    echo "no name of a node: not told to Slurm"
    exit 1
    ;;
esac
text="gtrain: job ${SLURM_JOB_ID:-?}: $reason"

# Slurm keeps a reason only with a state. A drained node gets no new jobs until somebody has looked at
# it (scontrol update nodename=... state=resume). Needs an operator's rights in Slurm: by sudo, where the
# site lets users do just this, or else nothing.
set -- update nodename="$node" state=drain reason="$text"
if scontrol "$@" 2>/dev/null || sudo -n scontrol "$@" 2>/dev/null; then
    echo "$node is drained, with the reason"
else
    echo "this user may not change Slurm's record of $node"
fi
