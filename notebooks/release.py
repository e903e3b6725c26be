# Databricks notebook source
# MAGIC %md
# MAGIC # A differentially private release, step by step
# MAGIC
# MAGIC 1. read the configuration and see, from public numbers alone, what the release costs and how good it is;
# MAGIC 2. bind it to the tables: which snapshot is counted, which groups are published;
# MAGIC 3. release: the ledger is charged, then the data is read once;
# MAGIC 4. look at what was stored: counts, intervals, and the budget of the members of each group.
# MAGIC
# MAGIC Running it again under the same release id returns the stored release and spends nothing. Under another id it
# MAGIC is a new release, and is charged. Output of cells is kept with the notebook: this one shows nothing
# MAGIC confidential, and a cell that shows the input or the confidential audit does not belong in it.

# COMMAND ----------

# MAGIC %md
# MAGIC The wheel lies in a volume, where the administrator has put it (docs/databricks.md). Of its extras none
# MAGIC may bring pyspark: Databricks has its own, and a second one stops the session.

# COMMAND ----------

# MAGIC %pip install -q "spark-dphist[delta,postgresql,report] @ file:///Volumes/main/dphist/wheels/spark_dphist-0.1.0-py3-none-any.whl"

# COMMAND ----------

# Packages that Python has loaded before stay as they were until it starts anew.
dbutils.library.restartPython()

# COMMAND ----------

dbutils.widgets.text("configuration", "/Volumes/main/dphist/configurations/visits.toml")
dbutils.widgets.text("interval", "")
dbutils.widgets.text("ledger_password", "")

# COMMAND ----------

# MAGIC %md
# MAGIC `interval`, such as `2026-01`, is filled into a configuration with `@INTERVAL@` in it and makes the release
# MAGIC id; without one the id is new in every run. `ledger_password` names a secret as `scope/key`. It reaches the ledger's driver by the environment; its
# MAGIC address in the configuration has no password.

# COMMAND ----------

import os
from contextlib import nullcontext

from spark_dphist.accounting.ledger import Ledger
from spark_dphist.config import load_configuration
from spark_dphist.from_config import request_from
from spark_dphist.intervals import load_for_interval
from spark_dphist.plan import make_plan
from spark_dphist.release import run_release

if dbutils.widgets.get("ledger_password"):
    scope, secret = dbutils.widgets.get("ledger_password").split("/", maxsplit=1)
    os.environ["PGPASSWORD"] = dbutils.secrets.get(scope, secret)

path, interval = dbutils.widgets.get("configuration"), dbutils.widgets.get("interval")
configuration = load_for_interval(path, interval) if interval else load_configuration(path)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What it will cost, and how good it will be
# MAGIC
# MAGIC From the public policy alone; the worst case, for everybody, comes first.

# COMMAND ----------

plan = make_plan(configuration)
display(plan.to_pandas())
print(f"Counted: {plan.input}")
print(f"Worst case: rho = {plan.worst_case.rho:.4g}, epsilon = {plan.worst_case.epsilon:.4g}")
for warning in plan.warnings:
    print(f"Warning: {warning}")

# COMMAND ----------

display(plan.plot(of="budget").figure)

# COMMAND ----------

display(plan.plot(of="error").figure)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What will be counted
# MAGIC
# MAGIC Tables and schemas are looked at, no record is.

# COMMAND ----------

request = request_from(spark, configuration)
print(f"Input: {request.input}, snapshot {request.input_snapshot or 'not kept by its format'}")
print(f"Groups: {', '.join(request.columns)}")
print(f"Counts go to {request.output.described}, the audit to {request.audit_groups.described}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The release
# MAGIC
# MAGIC Without a ledger nothing counts what the data has cost so far, and running this cell twice spends twice.

# COMMAND ----------

section = configuration.ledger
with Ledger(section.url) if section else nullcontext() as ledger:
    release = run_release(spark, request, ledger=ledger, on_step=print)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What was released
# MAGIC
# MAGIC Each interval holds the true count with the stated probability, for itself.

# COMMAND ----------

display(release.counts.limit(20))
display(release.plot().figure)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What the members of each group have spent
# MAGIC
# MAGIC The budget at the *released* count, with the range over the interval. At the true count it would give the
# MAGIC count away.

# COMMAND ----------

display(release.audit.plot().figure)
for name, value in release.audit.header.facts:
    print(f"{name}: {value}")
