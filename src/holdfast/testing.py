"""Tests of pipelines, sources and sinks, without Spark and within milliseconds.

`InProcess` runs a pipeline in this process: a test feeds rows and watermarks by hand, owns the clock, crashes the run
where it likes, and looks at the output. `crash_everywhere` makes a test of a pipeline that crashes it at every step and
cuts its input at every place. `check_source` and `check_sink` are the suites that every connector of Holdfast passes,
for connectors of your own.
"""

from holdfast.testkit.crash_runs import crash_everywhere
from holdfast.testkit.hand_run import InProcess, Rows
from holdfast.testkit.sink_places import SinkGuarantee
from holdfast.testkit.sink_suite import check_sink
from holdfast.testkit.source_suite import check_source

__all__ = ["InProcess", "Rows", "SinkGuarantee", "check_sink", "check_source", "crash_everywhere"]
