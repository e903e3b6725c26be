#!/bin/sh
# One release for one month, for any scheduler: SPARK_HOME=... MASTER=... monthly-release.sh 2026-01
#
# Beside it: spark-hardened.conf (on a standalone cluster the private copy with the secret that it
# asks for), spark_dphist-0.1.0.zip, release.py (jobs/) and visits.toml, a configuration with
# @INTERVAL@ where the month belongs (docs/schedule.md).
set -eu
cd "$(dirname "$0")"
month=${1:?"the month to release, such as 2026-01"}
# Named, not found: schedulers have a short PATH, and without a master Spark would run here alone, as
# --properties-file replaces the spark-defaults.conf that may name one.
submit=${SPARK_HOME:?"the directory of Spark, such as /opt/spark"}/bin/spark-submit
master=${MASTER:?"the cluster, such as spark://HOST:7077 or yarn"}
exec "$submit" --master "$master" --properties-file spark-hardened.conf \
    --py-files spark_dphist-0.1.0.zip release.py visits.toml --interval "$month"
