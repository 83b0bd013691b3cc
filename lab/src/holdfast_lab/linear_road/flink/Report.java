package road;

/** A position report. A mutable POJO, so that Flink serialises it without reflection on every field type. */
public final class Report {
    public int time;
    public int vid;
    public int spd;
    public int xway;
    public int lane;
    public int dir;
    public int seg;
    public int pos;

    public Report() {}

    /** The expressway and the direction: no trip, accident or segment reaches beyond them. */
    public int road() {
        return 2 * xway + dir;
    }
}
