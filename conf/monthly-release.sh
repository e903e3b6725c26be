#!/bin/sh
# One release for one month, for any scheduler: monthly-release.sh 2026-01
#
# Beside it: spark-hardened.conf, spark_dphist-0.1.0.zip, release.py (jobs/) and
# visits.template.toml, a configuration with @MONTH@ where the month belongs.
set -eu
cd "$(dirname "$0")"
month=${1:?"the month to release, such as 2026-01"}
sed "s/@MONTH@/$month/g" visits.template.toml > "visits-$month.toml"
exec spark-submit --properties-file spark-hardened.conf --py-files spark_dphist-0.1.0.zip \
    release.py "visits-$month.toml" --release-id "visits-$month"
