"""The figures of the benchmark of Kafka, from runs that were made."""

from __future__ import annotations

from holdfast_lab.bench.kafka_speed import KafkaRun, KafkaSpeed

RUNS = (
    KafkaRun("holdfast", 100, 900_000.0, 3),
    KafkaRun("broker alone (Kafka's consumer)", 100, 2_000_000.0),
    KafkaRun("holdfast", 100, 1_100_000.0, 4),
    KafkaRun("spark (connector 4.2.0)", 100, 250_000.0),
)


def test_the_bar_is_on_the_median_over_that_of_structured_streaming() -> None:
    speed = KafkaSpeed(RUNS, 100.0)
    [bar] = speed.bars()
    assert (bar.value, bar.ok) == (4.0, True)
    assert [(row["engine"].split()[0], row["krows_per_s"], row["mb_per_s"]) for row in speed.table()] == [
        ("holdfast", 1_000, 100),
        ("broker", 2_000, 200),
        ("spark", 250, 25),
    ]
    assert speed.to_json()["bars"][0]["value"] == 4.0


def test_without_a_connector_there_is_no_ratio() -> None:
    assert KafkaSpeed(RUNS[:3], 100.0).bars()[0].value is None
