package road;

import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Toll notifications, keyed by expressway and direction. Everything that a toll depends on is in there: the trips of the
 * vehicles, who stands where, and the statistics of the segments.
 *
 * <p>Each entry of the state is packed into one long. It is cheap to keep, to change and to write to a checkpoint.
 */
public final class TollCalculator extends KeyedProcessFunction<Integer, Report, String> {
    private static final long serialVersionUID = 1L;
    private static final int EXIT = 4;
    private static final int STOPPED = 4;
    private static final int SEGMENTS = 100;
    private static final int SCOPE = 4;
    private static final int MINUTES = 5;
    private static final int KEPT_MINUTES = 8;
    private static final int FREE_CARS = 50;
    private static final double FREE_SPEED = 40;
    /** Means of up to six reports are whole numbers of sixtieths, so that sums are exact. */
    private static final int SIXTIETHS = 60;

    /** By vehicle on the road: its last report, see {@link #pack}. */
    private transient MapState<Integer, Long> trips;
    /** By lane and position: how many vehicles stand there. */
    private transient MapState<Integer, Long> standing;
    /** By segment: the last two minutes in which an accident there counts. */
    private transient MapState<Integer, Long> accidents;
    /** By segment and minute modulo eight: the minute, its vehicles, and the sum of their mean speeds. */
    private transient MapState<Integer, Long> cells;

    @Override
    public void open(OpenContext context) {
        trips = state("trips");
        standing = state("standing");
        accidents = state("accidents");
        cells = state("cells");
    }

    private MapState<Integer, Long> state(String name) {
        return getRuntimeContext().getMapState(new MapStateDescriptor<>(name, Types.INT, Types.LONG));
    }

    @Override
    public void processElement(Report report, Context context, Collector<String> answers) throws Exception {
        Long before = trips.get(report.vid);
        if (before == null && report.lane != 0) {
            return;
        }
        int minute = report.time / 60 + 1;
        boolean first = before == null;
        boolean same = !first && lane(before) == report.lane && pos(before) == report.pos;
        boolean here = !first && seg(before) == report.seg && minute(before) == minute;
        int still = same ? Math.min(still(before) + 1, STOPPED + 1) : 1;
        int count = here ? reports(before) + 1 : 1;
        int speed = report.spd + (here ? speed(before) : 0);
        count(report.seg, minute, !here, SIXTIETHS * speed / count
                - (here ? SIXTIETHS * speed(before) / reports(before) : 0));
        if (same && still >= STOPPED) {
            stand(report, minute, still == STOPPED);
        } else if (!first && !same && still(before) >= STOPPED) {
            leave(lane(before), pos(before));
        }
        if (report.lane == EXIT) {
            trips.remove(report.vid);
        } else {
            trips.put(report.vid, pack(report, minute, still, count, speed));
            if (first || seg(before) != report.seg) {
                notify(report, minute, answers);
            }
        }
    }

    /** Adds to the statistics of a segment: the vehicle if it is new there, and the change of its mean. */
    private void count(int seg, int minute, boolean isNew, int mean) throws Exception {
        int place = minute % KEPT_MINUTES * SEGMENTS + seg;
        Long known = cells.get(place);
        long cell = known != null && known >>> 53 == minute ? known : (long) minute << 53;
        cells.put(place, cell + (isNew ? 1L << 33 : 0) + mean);
    }

    private void stand(Report report, int minute, boolean isNew) throws Exception {
        long there = standing(report.lane, report.pos);
        if (isNew) {
            standing.put(place(report.lane, report.pos), ++there);
        }
        if (there >= 2) {
            Long known = accidents.get(report.seg);
            long last = known == null ? 0 : known & 0xFFFF;
            if (last != minute + 1) {
                accidents.put(report.seg, last << 16 | (minute + 1));
            }
        }
    }

    private void leave(int lane, int pos) throws Exception {
        long left = standing(lane, pos) - 1;
        if (left > 0) {
            standing.put(place(lane, pos), left);
        } else {
            standing.remove(place(lane, pos));
        }
    }

    private long standing(int lane, int pos) throws Exception {
        Long known = standing.get(place(lane, pos));
        return known == null ? 0 : known;
    }

    private void notify(Report report, int minute, Collector<String> answers) throws Exception {
        double sum = 0;
        int minutes = 0;
        int cars = 0;
        for (int then = Math.max(1, minute - MINUTES); then < minute; then++) {
            Long cell = cells.get(then % KEPT_MINUTES * SEGMENTS + report.seg);
            if (cell != null && cell >>> 53 == then) {
                int vehicles = (int) (cell >>> 33 & 0xFFFFF);
                sum += (double) (cell & 0x1FFFFFFFFL) / (SIXTIETHS * vehicles);
                minutes++;
                cars = then == minute - 1 ? vehicles : 0;
            }
        }
        double lav = minutes == 0 ? 0 : sum / minutes;
        int toll = 0;
        if (cars > FREE_CARS && lav < FREE_SPEED && !accidentAhead(report, minute)) {
            toll = 2 * (cars - FREE_CARS) * (cars - FREE_CARS);
        }
        answers.collect(
                report.time + "," + report.vid + "," + report.xway + "," + report.dir + "," + report.seg + ","
                        + (int) lav + "," + toll);
    }

    private boolean accidentAhead(Report report, int minute) throws Exception {
        int downstream = report.dir == 0 ? 1 : -1;
        for (int distance = 0; distance <= SCOPE; distance++) {
            Long counts = accidents.get(report.seg + downstream * distance);
            if (counts != null && ((counts & 0xFFFF) == minute || counts >>> 16 == minute)) {
                return true;
            }
        }
        return false;
    }

    private static int place(int lane, int pos) {
        return 8 * pos + lane;
    }

    /** From the lowest bit: 20 of the position, 7 segment, 3 lane, 3 still, 3 reports, 10 speed, 10 minute. */
    private static long pack(Report report, int minute, int still, int count, int speed) {
        return report.pos
                | (long) report.seg << 20
                | (long) report.lane << 27
                | (long) still << 30
                | (long) count << 33
                | (long) speed << 36
                | (long) minute << 46;
    }

    private static int pos(long trip) {
        return (int) (trip & 0xFFFFF);
    }

    private static int seg(long trip) {
        return (int) (trip >>> 20 & 0x7F);
    }

    private static int lane(long trip) {
        return (int) (trip >>> 27 & 7);
    }

    private static int still(long trip) {
        return (int) (trip >>> 30 & 7);
    }

    private static int reports(long trip) {
        return (int) (trip >>> 33 & 7);
    }

    private static int speed(long trip) {
        return (int) (trip >>> 36 & 0x3FF);
    }

    private static int minute(long trip) {
        return (int) (trip >>> 46);
    }
}
