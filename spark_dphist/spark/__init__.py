"""The Spark stages: key set, group counts, noise, storage. DataFrame API only, so Connect works."""
