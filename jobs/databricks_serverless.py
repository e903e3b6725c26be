"""A Databricks task on serverless compute: CONFIG INTERVAL SCOPE/KEY, the ledger's password.

A secret must not stand among the job's own environment variables, so it is fetched here.
"""

import os
import sys

from spark_dphist.cli import job


def main(configuration: str, interval: str, password: str) -> None:
    """Run the release with the ledger's password in the environment, where psycopg looks for it."""
    from databricks.sdk.runtime import dbutils

    scope, key = password.split("/", maxsplit=1)
    os.environ["PGPASSWORD"] = dbutils.secrets.get(scope, key)
    job(["run", configuration, "--interval", interval])


if __name__ == "__main__":
    main(*sys.argv[1:])
