package road;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringEncoder;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.fs.Path;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.BasePathBucketAssigner;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;

/** Reports, the toll calculator, and files that show, exactly once, what a checkpoint has completed. */
public final class TollJob {
    private TollJob() {}

    public static JobClient start(Configuration configuration, ArrivingReports reports, String answers)
            throws Exception {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        FileSink<String> files =
                FileSink.forRowFormat(new Path(answers), new SimpleStringEncoder<String>())
                        .withBucketAssigner(new BasePathBucketAssigner<>())
                        .withRollingPolicy(OnCheckpointRollingPolicy.build())
                        .build();
        environment
                .fromSource(
                        reports, WatermarkStrategy.noWatermarks(), "reports", TypeInformation.of(Report.class))
                .keyBy(Report::road)
                .process(new TollCalculator())
                .name("toll calculator")
                .sinkTo(files)
                .name("answers");
        return environment.executeAsync("linear-road");
    }
}
