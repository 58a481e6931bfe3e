/* SPDX-License-Identifier: Apache-2.0 */
/* The timeline of a step as SVG. */
#include "engine/report/timeline_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "engine/report/svg_internal.h"

/* Pixels. */
enum {
    MARGIN = 24,
    TITLE_Y = 32,
    LEGEND_Y = 58,
    ROWS_Y = 82,
    ROW_HEIGHT = 40,
    BOX_HEIGHT = 26,
    WIRE_HEIGHT = 4, /* of transfers, below the boxes */
    AXIS_HEIGHT = 48,
    CHAR_WIDTH = 7, /* of labels, on average */
    MIN_PLOT = 760,
    MAX_PLOT = 2200,
    BOX_WANTED = 22, /* of a typical forward */
    MAX_NAME = 24
};

static const char css[] = ".title { font-size: 16px; font-weight: bold; }\n"
                          ".n { font-size: 11px; fill: #ffffff; }\n"
                          ".n9 { font-size: 9px; fill: #ffffff; }\n"
                          ".d { font-size: 11px; fill: #3d2400; }\n"
                          ".d9 { font-size: 9px; fill: #3d2400; }\n"
                          ".t { font-size: 11px; fill: #57606a; }\n"
                          ".row { fill: #f3f4f6; }\n"
                          ".grid { stroke: #d8dce0; stroke-width: 1; }\n"
                          ".axis { stroke: #8c959f; stroke-width: 1; }\n"
                          ".F { fill: #3b73c9; }\n"
                          ".B { fill: #2f9157; }\n"
                          ".R { fill: url(#hatch); }\n"
                          ".U { fill: #7d8590; }\n"
                          ".sf { fill: #3b73c9; }\n"
                          ".sb { fill: #2f9157; }\n"
                          ".rf { fill: #b9cdec; }\n"
                          ".rb { fill: #b4dcc4; }\n";

static const char hatch[] =
    "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" "
    "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
    "<rect width=\"6\" height=\"6\" fill=\"#f5a742\"/>"
    "<rect width=\"2\" height=\"6\" fill=\"#e38d1b\"/>"
    "</pattern></defs>\n";

typedef struct plot {
    const sl_timeline_t *timeline;
    FILE *stream;
    uint64_t start_ns, end_ns;
    double x, width; /* of the rows' boxes */
    double px_per_ns;
} plot_t;

static int is_compute(sl_instruction_kind_t kind)
{
    return kind == SL_INSTRUCTION_FORWARD || kind == SL_INSTRUCTION_RECOMPUTE ||
           kind == SL_INSTRUCTION_BACKWARD || kind == SL_INSTRUCTION_UPDATE;
}

/* An event without a time (0) or that ends before it starts is not drawn. */
static int is_drawn(const sl_trace_event_t *event)
{
    return event->start_ns != 0 && event->end_ns >= event->start_ns;
}

/* First start and last end. Waits do not count: the step is what computes,
 * unless nothing does. */
static void find_span(const sl_timeline_t *timeline, uint64_t *start_p,
                      uint64_t *end_p)
{
    uint64_t start = UINT64_MAX, end = 0;
    int only_compute;
    size_t i;

    for (only_compute = 1; only_compute >= 0 && end == 0; only_compute--) {
        for (i = 0; i < timeline->n_events; i++) {
            const sl_trace_event_t *event = &timeline->events[i];

            if (!is_drawn(event) ||
                (only_compute && !is_compute(event->instruction.kind))) {
                continue;
            }
            start = event->start_ns < start ? event->start_ns : start;
            end = event->end_ns > end ? event->end_ns : end;
        }
    }
    *start_p = end == 0 ? 0 : start;
    *end_p = end;
}

double sl_timeline_bubble(const sl_timeline_t *timeline)
{
    double busy_ns = 0.0, wall_ns;
    uint64_t start_ns, end_ns;
    size_t i;

    find_span(timeline, &start_ns, &end_ns);
    wall_ns = (double)(end_ns - start_ns) * (double)timeline->n_stages;
    if (!(wall_ns > 0.0)) {
        return 0.0;
    }
    for (i = 0; i < timeline->n_events; i++) {
        const sl_trace_event_t *event = &timeline->events[i];

        if (is_drawn(event) && is_compute(event->instruction.kind)) {
            busy_ns += (double)event->busy_ns;
        }
    }
    return 1.0 - busy_ns / wall_ns;
}

static double ms_of(uint64_t ns)
{
    return (double)ns * 1e-6;
}

static double row_y(int stage)
{
    return (double)(ROWS_Y + stage * ROW_HEIGHT);
}

static double x_of(const plot_t *plot, uint64_t ns)
{
    const uint64_t at = ns < plot->start_ns ? plot->start_ns
                        : ns > plot->end_ns ? plot->end_ns
                                            : ns;

    return plot->x + (double)(at - plot->start_ns) * plot->px_per_ns;
}

/* ---- parts of the picture ---- */

/* "stage 3 · cpu:1"; a long name is cut. */
static void row_label(const sl_timeline_t *timeline, int stage, char *text,
                      size_t text_bytes)
{
    const char *name =
        timeline->row_names == NULL ? NULL : timeline->row_names[stage];

    if (name == NULL) {
        (void)snprintf(text, text_bytes, "stage %d", stage);
    } else {
        (void)snprintf(text, text_bytes, "stage %d, %.*s%s", stage, MAX_NAME,
                       name, strlen(name) > MAX_NAME ? "..." : "");
    }
}

static void draw_title(const plot_t *plot)
{
    const sl_timeline_t *timeline = plot->timeline;
    const sl_svg_style_t style = {"title", "start"};
    const double bubble = isfinite(timeline->bubble)
                              ? timeline->bubble
                              : sl_timeline_bubble(timeline);
    char text[256], ms[SL_SVG_NUMBER_BYTES], percent[SL_SVG_NUMBER_BYTES];

    (void)snprintf(
        text, sizeof(text),
        "%.60s, %d stage%s, %d micro-batch%s: step %s ms, bubble %s %%",
        timeline->schedule, timeline->n_stages,
        timeline->n_stages == 1 ? "" : "s", timeline->n_micro_batches,
        timeline->n_micro_batches == 1 ? "" : "es",
        sl_svg_number(ms_of(plot->end_ns - plot->start_ns), 2, ms),
        sl_svg_number(100.0 * bubble, 1, percent));
    sl_svg_text(plot->stream, MARGIN, TITLE_Y, &style, text);
}

static void draw_rect(FILE *stream, const char *class_name, double x, double y,
                      double width, double height)
{
    (void)fprintf(stream, "<rect class=\"%s\"", class_name);
    sl_svg_attribute(stream, "x", x);
    sl_svg_attribute(stream, "y", y);
    sl_svg_attribute(stream, "width", width);
    sl_svg_attribute(stream, "height", height);
}

/* Only what the picture has. */
static void draw_legend(const plot_t *plot)
{
    static const struct {
        const char *class_name, *text;
        sl_instruction_kind_t kinds[2];
        double height;
    } items[] = {
        {"F", "forward", {SL_INSTRUCTION_FORWARD, SL_INSTRUCTION_FORWARD}, 12},
        {"R",
         "recomputation",
         {SL_INSTRUCTION_RECOMPUTE, SL_INSTRUCTION_RECOMPUTE},
         12},
        {"B",
         "backward",
         {SL_INSTRUCTION_BACKWARD, SL_INSTRUCTION_BACKWARD},
         12},
        {"U", "update", {SL_INSTRUCTION_UPDATE, SL_INSTRUCTION_UPDATE}, 12},
        {"sf",
         "sending",
         {SL_INSTRUCTION_SEND_FORWARD, SL_INSTRUCTION_SEND_BACKWARD},
         WIRE_HEIGHT},
        {"rf",
         "waiting for a neighbour",
         {SL_INSTRUCTION_RECV_FORWARD, SL_INSTRUCTION_RECV_BACKWARD},
         WIRE_HEIGHT}};
    const sl_svg_style_t style = {"t", "start"};
    double x = MARGIN;
    size_t i, e;

    for (i = 0; i < sizeof(items) / sizeof(*items); i++) {
        for (e = 0; e < plot->timeline->n_events; e++) {
            const sl_instruction_kind_t kind =
                plot->timeline->events[e].instruction.kind;

            if (kind == items[i].kinds[0] || kind == items[i].kinds[1]) {
                draw_rect(plot->stream, items[i].class_name, x,
                          LEGEND_Y - 4 - items[i].height / 2, 16,
                          items[i].height);
                (void)fputs("/>\n", plot->stream);
                sl_svg_text(plot->stream, x + 22, LEGEND_Y, &style,
                            items[i].text);
                x += 22 + 20 + (double)(CHAR_WIDTH * strlen(items[i].text));
                break;
            }
        }
    }
}

static void draw_rows(const plot_t *plot)
{
    const sl_svg_style_t style = {"label", "end"};
    int stage;

    for (stage = 0; stage < plot->timeline->n_stages; stage++) {
        char text[64];

        row_label(plot->timeline, stage, text, sizeof(text));
        draw_rect(plot->stream, "row", plot->x, row_y(stage), plot->width,
                  BOX_HEIGHT + 2 + WIRE_HEIGHT);
        (void)fputs("/>\n", plot->stream);
        sl_svg_text(plot->stream, plot->x - 10, row_y(stage) + 17, &style,
                    text);
    }
}

static void draw_axis(const plot_t *plot)
{
    const sl_svg_style_t middle = {"t", "middle"};
    const double range_ms = ms_of(plot->end_ns - plot->start_ns);
    const double step_ms = sl_svg_axis_step(range_ms, (int)plot->width / 90);
    const int decimals = sl_svg_axis_decimals(step_ms);
    const double y = row_y(plot->timeline->n_stages);
    int i;

    for (i = 0; i * step_ms <= range_ms; i++) {
        const double x = plot->x + i * step_ms * 1e6 * plot->px_per_ns;
        char text[SL_SVG_NUMBER_BYTES];

        sl_svg_line(plot->stream, x, ROWS_Y - 4, x, y + 4, "grid");
        sl_svg_text(plot->stream, x, y + 18, &middle,
                    sl_svg_number(i * step_ms, decimals, text));
    }
    sl_svg_line(plot->stream, plot->x, y, plot->x + plot->width, y, "axis");
    sl_svg_text(plot->stream, plot->x + plot->width / 2, y + 36, &middle,
                "time (ms)");
}

/* In 11 pixels, or 9, or not at all. */
static void draw_number(const plot_t *plot, const sl_trace_event_t *event,
                        double x, double width)
{
    const int is_dark = event->instruction.kind == SL_INSTRUCTION_RECOMPUTE;
    const int micro_batch = event->instruction.micro_batch;
    sl_svg_style_t style = {is_dark ? "d" : "n", "middle"};
    double y = row_y(event->stage) + BOX_HEIGHT / 2.0 + 4.0, n_digits;
    char text[16];

    if (micro_batch < 0) {
        return;
    }
    n_digits = snprintf(text, sizeof(text), "%d", micro_batch);
    if (width < 7.0 * n_digits + 2.0) {
        style.class_name = is_dark ? "d9" : "n9";
        y -= 1.0;
    }
    if (width >= 5.7 * n_digits) {
        sl_svg_text(plot->stream, x + width / 2, y, &style, text);
    }
}

static void draw_event(const plot_t *plot, const sl_trace_event_t *event)
{
    const sl_instruction_kind_t kind = event->instruction.kind;
    const double x = x_of(plot, event->start_ns);
    const double y = row_y(event->stage);
    /* a white seam between neighbours, while there is room for it */
    const double full = x_of(plot, event->end_ns) - x;
    const double width = full > 4.0 ? full - 1.0 : full > 0.5 ? full : 0.5;
    char start[SL_SVG_NUMBER_BYTES], length[SL_SVG_NUMBER_BYTES];

    if (is_compute(kind)) {
        draw_rect(plot->stream, sl_instruction_kind_name(kind), x, y, width,
                  BOX_HEIGHT);
    } else {
        draw_rect(plot->stream, sl_instruction_kind_name(kind), x,
                  y + BOX_HEIGHT + 2, width, WIRE_HEIGHT);
    }
    (void)sl_svg_number(event->start_ns > plot->start_ns
                            ? ms_of(event->start_ns - plot->start_ns)
                            : -ms_of(plot->start_ns - event->start_ns),
                        3, start);
    (void)sl_svg_number(ms_of(event->end_ns - event->start_ns), 3, length);
    (void)fprintf(plot->stream, "><title>%s", sl_instruction_kind_name(kind));
    if (event->instruction.micro_batch >= 0) {
        (void)fprintf(plot->stream, "%d", event->instruction.micro_batch);
    }
    (void)fprintf(plot->stream, ": %s ms, from %s ms</title></rect>\n", length,
                  start);
    if (is_compute(kind)) {
        draw_number(plot, event, x, width);
    }
}

/* ---- the whole ---- */

/* Wide enough that forwards have room for their number. */
static void lay_out(plot_t *plot)
{
    const sl_timeline_t *timeline = plot->timeline;
    const double span_ns = (double)(plot->end_ns - plot->start_ns);
    double forward_ns = 0.0, width = MIN_PLOT;
    size_t n_forwards = 0, longest = 0, i;
    int stage;

    for (stage = 0; stage < timeline->n_stages; stage++) {
        char text[64];

        row_label(timeline, stage, text, sizeof(text));
        longest = strlen(text) > longest ? strlen(text) : longest;
    }
    for (i = 0; i < timeline->n_events; i++) {
        const sl_trace_event_t *event = &timeline->events[i];

        if (is_drawn(event) &&
            event->instruction.kind == SL_INSTRUCTION_FORWARD) {
            forward_ns += (double)(event->end_ns - event->start_ns);
            n_forwards++;
        }
    }
    if (n_forwards > 0 && forward_ns > 0.0) {
        width = span_ns / (forward_ns / (double)n_forwards) * BOX_WANTED;
    }
    plot->width = width < MIN_PLOT   ? MIN_PLOT
                  : width > MAX_PLOT ? MAX_PLOT
                                     : floor(width);
    plot->x = MARGIN + 10 + (double)(CHAR_WIDTH * longest);
    plot->px_per_ns = span_ns > 0.0 ? plot->width / span_ns : 0.0;
}

static void draw(plot_t *plot)
{
    const sl_timeline_t *timeline = plot->timeline;
    size_t i;

    lay_out(plot);
    sl_svg_begin(plot->stream, plot->x + plot->width + MARGIN,
                 row_y(timeline->n_stages) + AXIS_HEIGHT, css);
    (void)fputs(hatch, plot->stream);
    draw_title(plot);
    draw_legend(plot);
    draw_rows(plot);
    draw_axis(plot);
    for (i = 0; i < timeline->n_events; i++) {
        const sl_trace_event_t *event = &timeline->events[i];

        /* a wait before the first computation, or after the last, is cut */
        if (is_drawn(event) && event->start_ns <= plot->end_ns &&
            event->end_ns >= plot->start_ns) {
            draw_event(plot, event);
        }
    }
    sl_svg_end(plot->stream);
}

sl_status_t sl_timeline_svg_write(const char *path,
                                  const sl_timeline_t *timeline)
{
    plot_t plot = {.timeline = timeline};
    sl_file_writer_t *writer = NULL;
    sl_status_t status;
    size_t i;

    for (i = 0; i < timeline->n_events; i++) {
        const int stage = timeline->events[i].stage;

        if (stage < 0 || stage >= timeline->n_stages) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                    "timeline: event %zu is of stage %d; there are %d stages",
                    i, stage, timeline->n_stages);
        }
    }
    find_span(timeline, &plot.start_ns, &plot.end_ns);
    if (plot.end_ns == 0) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "timeline: there are no events; was the engine made with "
                "trace, and a step run?");
    }
    SL_TRY(status, sl_file_begin(path, &writer), out);
    plot.stream = sl_file_stream(writer);
    draw(&plot);
    status = sl_file_end(writer);
out:
    return status;
}
