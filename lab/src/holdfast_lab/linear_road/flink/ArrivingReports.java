package road;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/**
 * The position reports of many expressways, as they arrive by the clock, however far the job is behind.
 *
 * <p>A file has the reports of one expressway; each comes once for every expressway. Reader n of r reads those of the
 * expressways n, n + r, and so on, so the reports of an expressway stay in order. The first {@code warm} are there at
 * once; the others arrive from the time that the file {@code began} tells. With each checkpoint a reader notes how many
 * reports of the one expressway are before it: so it is known which answers a checkpoint shows.
 */
public final class ArrivingReports
        implements Source<Report, ArrivingReports.Share, List<ArrivingReports.Share>> {
    private static final long serialVersionUID = 1L;
    private static final int RECORD = 32;
    private static final int REPORTS_PER_CALL = 2_000;

    private final String reports;
    private final String began;
    private final String positions;
    private final int expressways;
    private final int vehicles;
    private final int warm;

    public ArrivingReports(
            String reports, String began, String positions, int expressways, int vehicles, int warm) {
        this.reports = reports;
        this.began = began;
        this.positions = positions;
        this.expressways = expressways;
        this.vehicles = vehicles;
        this.warm = warm;
    }

    /** The expressways of one reader, and how many reports of each it has read. */
    public static final class Share implements SourceSplit, Serializable {
        private static final long serialVersionUID = 1L;
        final int number;
        final int of;
        final int read;

        Share(int number, int of, int read) {
            this.number = number;
            this.of = of;
            this.read = read;
        }

        @Override
        public String splitId() {
            return Integer.toString(number);
        }
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SplitEnumerator<Share, List<Share>> createEnumerator(SplitEnumeratorContext<Share> context) {
        List<Share> shares = new ArrayList<>();
        for (int number = 0; number < context.currentParallelism(); number++) {
            shares.add(new Share(number, context.currentParallelism(), 0));
        }
        return new Shares(context, shares);
    }

    @Override
    public SplitEnumerator<Share, List<Share>> restoreEnumerator(
            SplitEnumeratorContext<Share> context, List<Share> left) {
        return new Shares(context, left);
    }

    @Override
    public SourceReader<Report, Share> createReader(SourceReaderContext context) {
        return new Reader();
    }

    @Override
    public SimpleVersionedSerializer<Share> getSplitSerializer() {
        return new ShareFormat();
    }

    @Override
    public SimpleVersionedSerializer<List<Share>> getEnumeratorCheckpointSerializer() {
        return new SharesFormat();
    }

    /** Gives each reader one share. */
    private static final class Shares implements SplitEnumerator<Share, List<Share>> {
        private final SplitEnumeratorContext<Share> context;
        private final Deque<Share> left;

        Shares(SplitEnumeratorContext<Share> context, List<Share> left) {
            this.context = context;
            this.left = new ArrayDeque<>(left);
        }

        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int reader, String host) {}

        @Override
        public void addSplitsBack(List<Share> shares, int reader) {
            left.addAll(shares);
        }

        @Override
        public void addReader(int reader) {
            if (!left.isEmpty()) {
                context.assignSplit(left.removeFirst(), reader);
            }
        }

        @Override
        public List<Share> snapshotState(long checkpoint) {
            return new ArrayList<>(left);
        }

        @Override
        public void close() {}
    }

    private final class Reader implements SourceReader<Report, Share> {
        private final Executor soon = CompletableFuture.delayedExecutor(1, TimeUnit.MILLISECONDS);
        private ByteBuffer rows;
        private int count;
        private double start = Double.NaN;
        private Share share;
        private int read;
        private final Report report = new Report();

        @Override
        public void start() {
            try (FileChannel file = FileChannel.open(Path.of(reports), StandardOpenOption.READ)) {
                rows = file.map(FileChannel.MapMode.READ_ONLY, 0, file.size()).order(ByteOrder.LITTLE_ENDIAN);
                count = (int) (file.size() / RECORD);
            } catch (IOException error) {
                throw new IllegalStateException("the reports cannot be read: " + reports, error);
            }
        }

        @Override
        public void addSplits(List<Share> given) {
            share = given.get(0);
            read = share.read;
        }

        @Override
        public InputStatus pollNext(ReaderOutput<Report> output) throws IOException {
            if (share == null) {
                return InputStatus.NOTHING_AVAILABLE;
            }
            int due = due(read + Math.max(1, REPORTS_PER_CALL / expressways));
            if (due == read) {
                return InputStatus.NOTHING_AVAILABLE;
            }
            for (; read < due; read++) {
                int at = read * RECORD;
                int vid = rows.getInt(at + 12);
                report.time = rows.getInt(at + 8);
                report.pos = rows.getInt(at + 16);
                report.spd = rows.getShort(at + 20);
                report.lane = rows.get(at + 22);
                report.dir = rows.get(at + 23);
                report.seg = rows.get(at + 24);
                for (int xway = share.number; xway < expressways; xway += share.of) {
                    report.xway = xway;
                    report.vid = xway * vehicles + vid;
                    output.collect(report);
                }
            }
            return InputStatus.MORE_AVAILABLE;
        }

        /** How many reports of an expressway are there, but at most so many. */
        private int due(int most) throws IOException {
            int end = Math.min(read, count);
            double now = System.currentTimeMillis() / 1e3;
            while (end < Math.min(most, count)) {
                if (end >= warm && !(begun() && start + rows.getDouble(end * RECORD) <= now)) {
                    break;
                }
                end++;
            }
            return end;
        }

        private boolean begun() throws IOException {
            if (Double.isNaN(start) && Files.exists(Path.of(began))) {
                start = Double.parseDouble(Files.readString(Path.of(began)));
            }
            return !Double.isNaN(start);
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return CompletableFuture.runAsync(() -> {}, soon);
        }

        @Override
        public List<Share> snapshotState(long checkpoint) {
            if (share == null) {
                return List.of();
            }
            String line = checkpoint + "," + share.number + "," + read + "\n";
            try {
                Files.write(Path.of(positions + "-" + share.number), line.getBytes(StandardCharsets.US_ASCII),
                        StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            } catch (IOException error) {
                throw new IllegalStateException("the position cannot be noted: " + positions, error);
            }
            return List.of(new Share(share.number, share.of, read));
        }

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() {}
    }

    private static final class ShareFormat implements SimpleVersionedSerializer<Share> {
        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(Share share) {
            return ByteBuffer.allocate(12).putInt(share.number).putInt(share.of).putInt(share.read).array();
        }

        @Override
        public Share deserialize(int version, byte[] bytes) {
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            return new Share(buffer.getInt(), buffer.getInt(), buffer.getInt());
        }
    }

    private static final class SharesFormat implements SimpleVersionedSerializer<List<Share>> {
        private final ShareFormat format = new ShareFormat();

        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(List<Share> shares) throws IOException {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            DataOutputStream out = new DataOutputStream(bytes);
            for (Share share : shares) {
                out.write(format.serialize(share));
            }
            return bytes.toByteArray();
        }

        @Override
        public List<Share> deserialize(int version, byte[] bytes) throws IOException {
            DataInputStream in = new DataInputStream(new ByteArrayInputStream(bytes));
            List<Share> shares = new ArrayList<>();
            while (in.available() > 0) {
                shares.add(format.deserialize(version, in.readNBytes(12)));
            }
            return shares;
        }
    }
}
