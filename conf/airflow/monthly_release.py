"""A DAG of Airflow 3 that makes one release for each month: copy and adapt it.

The release id is the month, so that a retry, a cleared task or a second scheduler asks for the same
release: what was committed is handed out again, and the budget is charged once. docs/schedule.md
explains what each kind of failure leaves and which of them a retry can mend.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

with DAG(
    dag_id="visits_monthly_release",
    # With a data interval: the run on 1 February is that of January. A plain cron expression has
    # none from Airflow 3 on.
    schedule=CronDataIntervalTimetable("5 3 1 * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),  # noqa: UP017 - Airflow runs older Pythons
    # Every month costs budget: none is made up for unless somebody asks for it.
    catchup=False,
    # One at a time: two releases would compete for one budget and one cluster.
    max_active_runs=1,
) as dag:
    BashOperator(
        task_id="release",
        # From the data interval, never from the time of the run, which differs at the next try. It
        # is in UTC: with a timetable in another zone the month would begin in the one before.
        bash_command=(
            "/srv/releases/monthly-release.sh {{ data_interval_start.strftime('%Y-%m') }}"
        ),
        # Beside the worker's own variables.
        env={"SPARK_HOME": "/opt/spark", "MASTER": "spark://HOST:7077"},
        append_env=True,
        # For what a retry can mend: no cluster, a busy ledger, a crash after the commit.
        retries=3,
        retry_delay=timedelta(minutes=10),
        retry_exponential_backoff=True,
    )
