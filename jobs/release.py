"""spark-submit entry point: spark-submit jobs/release.py CONFIG [--dry-run]."""

import sys

from spark_dphist.cli import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
