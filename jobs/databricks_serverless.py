"""A Databricks task on serverless compute: CONFIG RELEASE_ID SCOPE/KEY, the ledger's password.

Serverless compute has no environment variables of its own, so the secret is fetched here.
"""

import os
import sys

from spark_dphist.cli import job


def main(configuration: str, release_id: str, password: str) -> None:
    """Run the release with the ledger's password in the environment, where psycopg looks for it."""
    from databricks.sdk.runtime import dbutils

    scope, key = password.split("/", maxsplit=1)
    os.environ["PGPASSWORD"] = dbutils.secrets.get(scope, key)
    job(["run", configuration, "--release-id", release_id])


if __name__ == "__main__":
    main(*sys.argv[1:])
